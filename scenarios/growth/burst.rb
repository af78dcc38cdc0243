# frozen_string_literal: true

# Bursts that leave only free memory behind. Each step is a larger burst.

require_relative "../lib/scenario"

KEPT = []

# What is freed lies between what stays, so that the heap cannot shrink by itself.
def burst(size)
  strings = Array.new(size) { "x" * 900 }
  KEPT.replace(Array.new(50) { |index| strings[(index * size / 50) + 1] })
  nil
end

@size = 0

def step
  @size += 20_000
  # In a thread of its own, whose stack is gone when it ends: a word on it would keep all.
  Thread.new { burst(@size) }.join
  GC.start
  { objects: KEPT.size }
end

Scenario.run(expect: "retention", commands: { "step" => method(:step) }) { step }
