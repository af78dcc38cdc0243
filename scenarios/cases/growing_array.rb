# frozen_string_literal: true

# Measurements are added to a list of numbers, and never flushed: no object is new, only the memory of one Array grows. A list of
# waiting fibers grew like that (socketry/async#176). The request "flush" empties the list.

require_relative "../lib/scenario"

# The measurements.
module Stats
  LATENCIES = []

  def self.record(latency)
    LATENCIES << latency
  end
end

Scenario.run(commands: {
  "step" => lambda do
    3_000_000.times { |number| Stats.record(number) }
    {}
  end,
  "flush" => lambda do
    Stats::LATENCIES.clear
    {}
  end
}) do |_|
  9_000_000.times { |number| Stats.record(number) }
  {}
end
