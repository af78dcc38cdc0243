# frozen_string_literal: true

# A healthy process that warms up: it fills a cache up to its limit, and serves from it afterwards.

require_relative "../lib/scenario"

module Pages
  CACHE = {}
  LIMIT = 20_000
end

PER_STEP = 40_000

@served = 0

def step
  PER_STEP.times do
    @served += 1
    Pages::CACHE[@served % Pages::LIMIT] = "page #{@served} #{'x' * (500 + (@served % 500))}"
  end
  GC.start
  { objects: Pages::CACHE.size }
end

Scenario.run(commands: { "step" => method(:step) }) { { objects: 0 } }
