# frozen_string_literal: true

# usage: threads.rb churn|burst|pin
#
# 20 threads that allocate strings. Afterwards they do a little work now and then, like threads of a server, so that an
# allocator that returns memory only when it is called can do so. TRIM_IN_GC=mark or sweep trims inside each major GC.
#
# All settings load the same code, because in such a small program the number of objects determines how often the GC runs
# and how much garbage there is.

require_relative "../../gem/bench/workloads"
require_relative "../../testkit/ruby/extension"
$LOAD_PATH.unshift(File.expand_path("../../gem/lib", __dir__))
require "rbloat"

THREADS = 20
# Seconds between two pieces of work of a thread.
PAUSE = 0.5

RINGS = Array.new(THREADS) { [] }

# As burst, but keeps one string in 200 for a while.
def pin(random, ring)
  Workloads.burst(random) do |result|
    0.step(result.size - 1, 200) { |place| ring << result[place] }
    ring.shift(ring.size - 500) if ring.size > 500
  end
end

program = {
  "churn" => ->(random, _ring) { Workloads.churn(random) }, "burst" => ->(random, _ring) { Workloads.burst(random) },
  "pin" => method(:pin)
}.fetch(ARGV.fetch(0))
if (place = ENV["TRIM_IN_GC"])
  require Extension.compile(File.expand_path("../../gem/bench/trim_in_gc.c", __dir__))
  TrimInGC.start(place)
end

done = Queue.new
Thread.abort_on_exception = true
THREADS.times do |index|
  Thread.new do
    program.call(Random.new(index), RINGS[index])
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
