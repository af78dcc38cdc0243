# frozen_string_literal: true

# A cache without a limit: each step adds hashes under new keys.

require_relative "../lib/scenario"

module Cache
  STORE = {}
end

PER_STEP = 20_000

def step
  first = Cache::STORE.size
  # With more than eight pairs a hash has its own table.
  @per_step.times { |number| Cache::STORE[first + number] = (0..11).to_h { |field| [field, number] } }
  { objects: Cache::STORE.size }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  @per_step = (PER_STEP * scale).ceil
  step
end
