# frozen_string_literal: true

# usage: threads.rb burst|churn nothing|auto|native|both|mark EXTENSION|sweep EXTENSION
#
# Threads that allocate strings, like scenarios/burst.rb and churn.rb, but for longer. Prints one line of JSON.

require "json"
require_relative "figures"
require_relative "workloads"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
program, way, extension = ARGV

THREADS = 20

# Seconds of CPU time of the gem's threads so far.
def own_cpu
  Dir["/proc/self/task/*"].sum do |task|
    File.read("#{task}/comm").start_with?("rbloat") ? File.read("#{task}/schedstat").to_i / 1e9 : 0
  end
end

def page_faults
  File.read("/proc/self/stat").split(") ").last.split[7].to_i
end

case way
when "auto", "native", "both"
  require "rbloat"
  Rbloat::AutoTrim.start unless way == "native"
  Rbloat::NativePressure.start unless way == "auto"
when "mark", "sweep"
  require extension
  TrimInGC.start(way)
end

GC.start
started = clock
faults = -page_faults
threads = Array.new(THREADS) { |index| Thread.new { Workloads.public_send(program, Random.new(index)) } }
threads.each(&:join)
seconds = clock - started
own = own_cpu
faults += page_faults
times = Process.times
collections = GC.count
3.times { GC.start }
at_once = rss
sleep 1
puts JSON.generate(seconds: seconds, cpu: times.utime + times.stime, own: own, faults: faults, collections: collections,
                   at_once: at_once, second_later: rss, trims: defined?(Rbloat) ? Rbloat::AutoTrim.stats[:trims] : nil,
                   fault_seconds: defined?(Rbloat) ? Rbloat::AutoTrim.stats[:fault_seconds] : nil,
                   told: defined?(Rbloat) ? Rbloat::NativePressure.stats[:told_bytes] : nil)
