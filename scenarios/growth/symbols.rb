# frozen_string_literal: true

# String keys that are converted to symbols. Each step has new ones, like a parser with symbolize_names whose keys come
# from outside.

require_relative "../lib/scenario"

module Params
  SEEN = {}
end

PER_STEP = 50_000

def step
  first = Params::SEEN.size
  @per_step.times { |number| Params::SEEN[:"parameter_of_a_request_#{first + number}"] = true }
  { objects: Params::SEEN.size }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  @per_step = (PER_STEP * scale).ceil
  step
end
