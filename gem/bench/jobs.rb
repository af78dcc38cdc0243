# frozen_string_literal: true

# usage: jobs.rb SECONDS nothing|SHARE|sweep EXTENSION
#
# Ten threads that run the jobs of workloads.rb. SHARE is the share of AutoTrim. Prints one line of JSON.

require "json"
require_relative "figures"
require_relative "workloads"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
seconds, way, extension = ARGV

THREADS = 10

case way
when "nothing" then nil
when "sweep"
  require extension
  TrimInGC.start(way)
else
  require "rbloat"
  Rbloat::AutoTrim.start(share: Float(way))
end

finish = clock + Float(seconds)
threads = Array.new(THREADS) do |index|
  Thread.new do
    random = Random.new(index)
    count = 0
    while clock < finish
      Workloads.job(random)
      count += 1
    end
    count
  end
end
samples = []
while clock < finish
  sleep 0.1
  samples << rss
end
jobs = threads.sum(&:value)
times = Process.times
half = samples.drop(samples.size / 2)
puts JSON.generate(way: way, jobs: jobs, cpu_ms: (1000 * (times.utime + times.stime) / jobs).round(2),
                   mean_rss: half.sum / half.size, peak_rss: samples.max,
                   trims: defined?(Rbloat) ? Rbloat::AutoTrim.stats[:trims] : nil)
