# frozen_string_literal: true

# usage: threads.rb churn|burst|pin
#
# 20 threads that allocate strings. Then they go on as those of a server do, with a little work now and then, for ever:
# an allocator that gives back when it is called can do so. TRIM_IN_GC=mark or sweep trims inside of each major GC.
#
# All settings load the same code: how often the GC of so small a program runs, and how much garbage lies around, depends
# on how many objects there are.

require_relative "../../gem/test/servers"
$LOAD_PATH.unshift(File.expand_path("../../gem/lib", __dir__))
require "rbloat"

THREADS = 20
# Seconds between two bits of work of a thread.
PAUSE = 0.5

# Keeps nothing, ever.
def churn(random, _index)
  300.times { 1_000.times { "x" * random.rand(4_096) } }
end

# All drop all that they have, and their peaks overlap.
def burst(random, _index)
  12.times do
    result = Array.new(5_000) { "x" * random.rand(64..8_255) }
    sleep 0.001
    result.clear
  end
end

RINGS = Array.new(THREADS) { [] }

# As burst, and one string in 200 is kept for a while.
def pin(random, index)
  ring = RINGS[index]
  12.times do
    result = Array.new(5_000) { "x" * random.rand(64..8_255) }
    sleep 0.001
    0.step(result.size - 1, 200) { |place| ring << result[place] }
    ring.shift(ring.size - 500) if ring.size > 500
    result.clear
  end
end

program = { "churn" => method(:churn), "burst" => method(:burst), "pin" => method(:pin) }.fetch(ARGV.fetch(0))
if (place = ENV["TRIM_IN_GC"])
  require Servers.extension(File.expand_path("../../gem/bench/trim_in_gc.c", __dir__))
  TrimInGC.start(place)
end

done = Queue.new
Thread.abort_on_exception = true
THREADS.times do |index|
  Thread.new do
    program.call(Random.new(index), index)
    done << true
    loop do
      sleep PAUSE
      10.times { "x" * 500 }
    end
  end
end
THREADS.times { done.pop }
3.times { GC.start }
$stdin.read
