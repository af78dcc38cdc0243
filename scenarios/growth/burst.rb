# frozen_string_literal: true

# Bursts that leave free memory behind, and nothing else: each step is a larger one.

require_relative "../lib/scenario"

@size = 0

def step
  @size += 20_000
  keep = []
  burst = Array.new(@size) { |number| [number % 400 == 0 ? keep : [], "x" * 900].last }
  # What is freed lies between what stays, so that the heap cannot shrink by itself.
  burst.each_with_index { |string, index| keep << string if index % 400 == 399 }
  @kept = keep.first(50)
  burst = nil
  GC.start
  { objects: @kept.size }
end

Scenario.run(expect: "retention", commands: { "step" => method(:step) }) { step }
