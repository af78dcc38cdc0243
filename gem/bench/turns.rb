# frozen_string_literal: true

# usage: turns.rb burst|churn|jobs ROUNDS EXTENSION
#
# Repeats the same work in one process, in turns without AutoTrim, with it, and with a trim after each major sweep. So
# all have the same heap, and one arena. The first work after a switch is not measured: it still pays for the mode
# before. Prints one line of JSON: the figures of each mode, by round.

require "json"
require_relative "figures"
require_relative "workloads"
require_relative "../../testkit/ruby/process_counts"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require "rbloat"
program, rounds, extension = ARGV
require extension

THREADS = { "burst" => 20, "churn" => 20, "jobs" => 10 }.freeze
# Seconds between two readings of RSS.
PERIOD = 0.02
# How to enter and to leave a mode.
MODES = {
  "off" => [-> {}, -> {}],
  "auto" => [-> { Rbloat::AutoTrim.start }, -> { Rbloat::AutoTrim.stop }],
  "sweep" => [-> { TrimInGC.start("sweep") }, -> { TrimInGC.stop }]
}.freeze

def work(program)
  start = ->(index) { Thread.new { Workloads.public_send(program, Random.new(index)) } }
  Array.new(THREADS.fetch(program), &start).each(&:join)
end

def cpu
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
end

def measure(program)
  samples = []
  pids = [Process.pid]
  before = ProcessCounts.of(pids)
  started = cpu
  worker = Thread.new { work(program) }
  samples << rss until worker.join(PERIOD)
  counts = ProcessCounts.since(before, pids).slice(:system, :own, :faults)
  { cpu: cpu - started, rss: samples.sum / samples.size, **counts }
end

# Limits the arenas, before any thread has one.
Rbloat::AutoTrim.start
Rbloat::AutoTrim.stop
work(program)

mode = "off"
runs = MODES.transform_values { [] }
Integer(rounds).times do |round|
  (round.even? ? MODES.keys : MODES.keys.reverse).each do |next_mode|
    if next_mode != mode
      MODES.fetch(mode).last.call
      MODES.fetch(mode = next_mode).first.call
      work(program)
    end
    runs.fetch(mode) << measure(program)
  end
end
puts JSON.generate(runs)
