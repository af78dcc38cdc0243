# frozen_string_literal: true

# The GC is disabled: all growth is garbage.

require_relative "../lib/scenario"

def step
  40_000.times { |number| { id: number, text: "row #{number} " * 10 } }
  { objects: 40_000 }
end

Scenario.run(settle: false, commands: { "step" => method(:step) }) do
  GC.start
  GC.disable
  step
end
