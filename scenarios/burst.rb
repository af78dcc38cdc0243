# frozen_string_literal: true

# Threads that each build a large result, all at once, and then drop it. Few objects remain, but malloc keeps the
# pages. This is the usual cause of a Ruby server that grows after a peak and never shrinks.

require_relative "lib/scenario"

THREADS = 20
ROUNDS = 4
STRINGS = 5_000
BYTES = (64..8_255).freeze

Scenario.run(expect: "malloc.unreturned") do |scale|
  strings = (STRINGS * scale).round
  Scenario.in_threads(THREADS) do |index|
    random = Random.new(index)
    ROUNDS.times do
      result = Array.new(strings) { "x" * random.rand(BYTES) }
      # The other threads build their results while this one is alive, so that all peaks overlap.
      sleep 0.001
      result.clear
    end
  end
  { results: THREADS * ROUNDS, strings_per_result: strings }
end
