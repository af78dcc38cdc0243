# frozen_string_literal: true

# Threads make strings at a steady pace and keep none of them. Each thread allocates from an arena of its own, and each
# arena stays as large as it ever was: Ruby knows of 2 MB, the process has a hundred times that.

require_relative "lib/scenario"

THREADS = 20
BATCHES = 300
STRINGS = 1_000
MAX_BYTES = 4_096

Scenario.run(expect: "malloc.unreturned") do |scale|
  strings = (STRINGS * scale).round
  Scenario.in_threads(THREADS) do |index|
    random = Random.new(index)
    BATCHES.times { strings.times { "x" * random.rand(MAX_BYTES) } }
  end
  { batches: THREADS * BATCHES, strings_per_batch: strings }
end
