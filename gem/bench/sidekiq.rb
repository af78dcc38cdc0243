# frozen_string_literal: true

# usage: sidekiq.rb [--with default,arena2,jemalloc,gem] [--jobs N] [--rounds N]
#
# Runs the same jobs in a real Sidekiq with 10 threads, under each setting in turns. Most jobs are small; one in ten
# builds 8 to 40 MiB of strings. Redis runs on a socket of its own. Prints a table, and the ratio of each setting to the
# first one, in pairs of runs of the same round.

require "fileutils"
require "json"
require "optparse"
require "sidekiq"
require "tmpdir"
require_relative "../../testkit/ruby/setting"
require_relative "../../testkit/ruby/statistics"

MIB = 1 << 20
PAGE = 4096

# The application. At the end of the last job it writes the figures of the jobs.
APPLICATION = <<~'RUBY'
  require "json"
  require "sidekiq"
  require "rbloat/sidekiq" if ENV["BENCH_GEM"]

  def clock
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  class Work
    include Sidekiq::Worker
    JOBS = Integer(ENV.fetch("BENCH_JOBS"))
    TIMES = Queue.new
    # The times of the first job. Sidekiq and the gem are loaded before.
    STARTS = Queue.new

    def perform(number)
      started = clock
      STARTS << [started, cpu] if STARTS.empty?
      random = Random.new(number)
      count = (number % 10).zero? ? random.rand(4_000..20_000) : random.rand(50..500)
      strings = Array.new(count) { "x" * random.rand(64..4_000) }
      sleep random.rand(0.005..0.03)
      strings.sum(&:size)
      TIMES << (clock - started)
      finish if TIMES.size == JOBS
    end

    def cpu
      Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
    end

    def finish
      times = Array.new(TIMES.size) { TIMES.pop }.sort
      started, cpu_before = STARTS.pop
      trims = defined?(Rbloat) ? Rbloat::AutoTrim.stats[:trims] : nil
      result = { seconds: clock - started, p99: times[times.size * 99 / 100], cpu: cpu - cpu_before, trims: trims }
      File.write("#{ENV.fetch('BENCH_RESULT')}.tmp", JSON.generate(result))
      File.rename("#{ENV.fetch('BENCH_RESULT')}.tmp", ENV.fetch("BENCH_RESULT"))
    end
  end
RUBY

options = { with: %w[default arena2 gem], jobs: 3_000, rounds: 3 }
OptionParser.new do |parser|
  parser.on("--with LIST", Array) { |names| options[:with] = names }
  parser.on("--jobs N", Integer) { |number| options[:jobs] = number }
  parser.on("--rounds N", Integer) { |number| options[:rounds] = number }
end.parse!

def clock
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def environment(setting, folder, jobs)
  own = if setting == "gem"
          { "RUBYOPT" => "-I#{Setting::GEM}", "BENCH_GEM" => "1" }
        else
          { "BENCH_GEM" => nil }
        end
  { **Setting.environment(setting), **own, "BENCH_JOBS" => jobs.to_s, "BENCH_RESULT" => "#{folder}/result",
                                           "REDIS_URL" => "unix://#{folder}/redis" }
end

def wait_until(seconds)
  limit = clock + seconds
  until (found = yield)
    abort "sidekiq.rb: waited in vain" if clock > limit
    sleep 0.05
  end
  found
end

def rss(pid)
  File.read("/proc/#{pid}/statm").split[1].to_i * PAGE
end

# Returns RSS, until all jobs are done.
def sample(pid, result)
  samples = []
  wait_until(300) do
    samples << rss(pid)
    File.exist?(result)
  end
  samples
end

# Runs all jobs, and returns the figures.
def run(setting, folder, jobs)
  Sidekiq.redis(&:flushall)
  FileUtils.rm_f("#{folder}/result")
  Sidekiq::Client.push_bulk("class" => "Work", "args" => Array.new(jobs) { |number| [number] })
  pid = spawn(environment(setting, folder, jobs), "sidekiq", "-c", "10", "-r", "#{folder}/work.rb",
              out: "#{folder}/log", err: %i[child out])
  samples = sample(pid, "#{folder}/result")
  # A server is quiet at times, too.
  sleep 3
  half = samples.drop(samples.size / 2)
  { rss: half.sum / half.size, peak: samples.max, quiet: rss(pid),
    **JSON.parse(File.read("#{folder}/result"), symbolize_names: true) }
ensure
  Process.kill("TERM", pid)
  Process.wait(pid)
end

runs = options[:with].to_h { |setting| [setting, []] }
Dir.mktmpdir do |folder|
  File.write("#{folder}/work.rb", APPLICATION)
  redis = spawn("redis-server", "--port", "0", "--unixsocket", "#{folder}/redis", "--save", "", "--dir", folder,
                out: File::NULL)
  wait_until(30) { File.socket?("#{folder}/redis") }
  Sidekiq.configure_client { |config| config.redis = { url: "unix://#{folder}/redis" } }
  options[:rounds].times do |round|
    options[:with].rotate(round).each { |setting| runs[setting] << run(setting, folder, options[:jobs]) }
  end
ensure
  Process.kill("TERM", redis)
  Process.wait(redis)
end

# The ratios of each run to the first setting's run of the same round, from the lowest to the highest.
def ratios(runs, others, figure)
  runs.zip(others).map { |run, other| run.fetch(figure).fdiv(other.fetch(figure)) }.sort
      .map { |ratio| format("%.3f", ratio) }.join(" ")
end

headings = ["setting", "RSS, MiB", "peak", "3 s later", "seconds", "CPU ms/job", "99th percentile, ms", "trims",
            "ratios of seconds", "ratios of CPU time"]
puts "| #{headings.join(' | ')} |", "|#{'---|' * headings.size}"
runs.each do |setting, of_setting|
  median = ->(figure) { Statistics.median(of_setting.map { |run| run.fetch(figure) || 0 }) }
  row = [setting, *%i[rss peak quiet].map { |figure| median.call(figure) / MIB }, format("%.1f", median.call(:seconds)),
         format("%.2f", median.call(:cpu) * 1000 / options[:jobs]), (median.call(:p99) * 1000).round,
         median.call(:trims),
         *%i[seconds cpu].map { |figure| ratios(of_setting, runs.values.first, figure) }]
  puts "| #{row.join(' | ')} |"
end
