# frozen_string_literal: true

# An array that only grows: each step adds strings.

require_relative "../lib/scenario"

module Audit
  LOG = []
end

PER_STEP = 20_000

def step
  @per_step.times { |number| Audit::LOG << ("x" * (100 + (number % 400))) }
  { objects: Audit::LOG.size }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  @per_step = (PER_STEP * scale).ceil
  step
end
