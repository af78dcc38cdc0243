# frozen_string_literal: true

# String keys turned into symbols: each step sees new ones, as a parser with symbolize_names does that is fed with keys
# from outside.

require_relative "../lib/scenario"

module Params
  SEEN = {}
end

PER_STEP = 50_000

def step
  first = Params::SEEN.size
  PER_STEP.times { |number| Params::SEEN[:"parameter_of_a_request_#{first + number}"] = true }
  { objects: Params::SEEN.size }
end

Scenario.run(expect: "managed_leak", commands: { "step" => method(:step) }) { step }
