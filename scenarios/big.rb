# frozen_string_literal: true

# A large server after a busy hour, for scripts/bench: two million live objects, more than a million chunks in malloc,
# 25 threads, 1.3 GiB. Most of its memory was freed after bursts in the threads, with survivors in between as in pin.

require_relative "lib/scenario"

Order = Struct.new(:number, :state, :previous)
STRINGS = 1_150_000
STRING_BYTES = (60..260).freeze
ORDERS = 850_000
RECORDS = []
LAST_ORDER = [nil]

THREADS = 23
ROUNDS = 20
ROWS = 3_000
ROW_BYTES = (64..8_255).freeze
KEEP_ONE_IN = 200
CACHES = Array.new(THREADS) { [] }

# Reads the clock every millisecond, and remembers the longest gap. So the process itself measures its pauses,
# independently of the program that caused them.
class Heartbeat
  INTERVAL = 0.001

  def initialize
    @longest = 0
    Thread.new { beat }
  end

  # Returns the longest gap since the last call.
  def take_longest_gap
    longest = @longest
    @longest = 0
    { longest_ms: longest / 1_000.0 }
  end

  private

  def beat
    last = microseconds
    loop do
      sleep INTERVAL
      now = microseconds
      @longest = now - last if now - last > @longest
      last = now
    end
  end

  # An Integer, because a Float may be an object, and this must create no work for the GC.
  def microseconds
    Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond)
  end
end

def retain(scale)
  random = Random.new(1)
  (STRINGS * scale).round.times { RECORDS << "x" * random.rand(STRING_BYTES) }
  (ORDERS * scale).round.times { |number| LAST_ORDER[0] = Order.new(number, :shipped, LAST_ORDER[0]) }
end

def burst(scale)
  rows = (ROWS * scale).round
  Scenario.in_threads(THREADS) do |index|
    random = Random.new(index)
    ROUNDS.times do
      result = Array.new(rows) { "x" * random.rand(ROW_BYTES) }
      sleep 0.001
      0.step(rows - 1, KEEP_ONE_IN) { |position| CACHES[index] << result[position] }
      result.clear
    end
  end
end

# How long fork(2) takes for this process: the kernel copies its page tables.
def fork_time
  started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  child = fork { exit!(0) }
  seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
  Process.wait(child)
  { fork_ms: seconds * 1_000 }
end

heartbeat = nil
commands = { "gap" => -> { heartbeat.take_longest_gap }, "fork" => -> { fork_time } }
Scenario.run(expect: "malloc.unreturned", commands: commands) do |scale|
  retain(scale)
  burst(scale)
  heartbeat = Heartbeat.new
  { strings: RECORDS.size, orders: (ORDERS * scale).round, kept_rows: CACHES.sum(&:size) }
end
