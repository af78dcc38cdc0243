# frozen_string_literal: true

# Values in ENV that change all the time. The C library keeps each value that a variable has ever had, in a tree whose pointers have
# the colour of a node in their lowest bit.

require_relative "../lib/scenario"

VALUES = Enumerator.produce(0) { |number| number + 1 }

change = lambda do |count|
  count.times { ENV["STATE_#{rand(10)}"] = VALUES.next.to_s.ljust(20_000, "v") }
  { values: count }
end

Scenario.run(commands: { "step" => -> { change.call(1_000) } }) do |scale|
  change.call((4_000 * scale).ceil)
end
