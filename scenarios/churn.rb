# frozen_string_literal: true

# Threads that make strings at a steady pace and keep none of them. Each thread allocates from its own arena, and an
# arena never shrinks. Ruby knows of 2 MiB; the process has a hundred times as much.

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
