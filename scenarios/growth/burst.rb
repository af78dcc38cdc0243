# frozen_string_literal: true

# Bursts that leave only free memory behind. Each step is a larger burst.

require_relative "../lib/scenario"

KEPT = []

# Freed memory is between memory in use, so the heap cannot shrink by itself.
def burst(size)
  strings = Array.new(size) { "x" * 1200 }
  KEPT.replace(Array.new(50) { |index| strings[(index * size / 50) + 1] })
  nil
end

@size = 0

def step
  @size += 20_000
  # In a thread of its own, because its stack disappears. A stale word on the stack would retain everything.
  Thread.new { burst(@size) }.join
  GC.start
  { objects: KEPT.size }
end

Scenario.run(commands: { "step" => method(:step) }) { step }
