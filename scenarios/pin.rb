# frozen_string_literal: true

# As burst, but every thread keeps one string in 200 in a small cache. The survivors are spread over all memory that was
# in use, which looks like hopeless fragmentation. Yet many whole free pages are between two survivors.

require "etc"
require_relative "lib/scenario"

THREADS = 20
ROUNDS = 40
STRINGS = 2_500
BYTES = (64..8_255).freeze
KEEP_ONE_IN = 200
# With larger pages, or less memory, as many survivors would leave no page free.
CACHE_ENTRIES = 500 * 4096 / Etc.sysconf(Etc::SC_PAGESIZE)
CACHES = Array.new(THREADS) { [] }

Scenario.run(expect: "malloc.unreturned") do |scale|
  strings = (STRINGS * scale).round
  entries = (CACHE_ENTRIES * scale).ceil
  Scenario.in_threads(THREADS) do |index|
    random = Random.new(index)
    ROUNDS.times do
      result = Array.new(strings) { "x" * random.rand(BYTES) }
      sleep 0.001
      0.step(strings - 1, KEEP_ONE_IN) { |position| CACHES[index] << result[position] }
      CACHES[index].shift(CACHES[index].size - entries) if CACHES[index].size > entries
      result.clear
    end
  end
  { results: THREADS * ROUNDS, strings_per_result: strings, kept_bytes: CACHES.flatten.sum(&:bytesize) }
end
