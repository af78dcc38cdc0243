# frozen_string_literal: true

# Small strings in a row, of which one in three is kept. Nearly every page has a live one, so no page can be returned to
# the kernel, although two thirds of the bytes are free. malloc_trim does not help.

require_relative "lib/scenario"

TOTAL_BYTES = 500_000_000
# Longer than any slot of any Ruby, so that they are malloc'ed.
BYTES = (1_050..1_400).freeze
# The two strings between two survivors are together shorter than a page.
KEEP_ONE_IN = 3
SURVIVORS = []

Scenario.run(expect: "malloc.fragmented") do |scale|
  random = Random.new(1)
  strings = Array.new((TOTAL_BYTES * scale / BYTES.sum * BYTES.size).round) { "x" * random.rand(BYTES) }
  0.step(strings.size - 1, KEEP_ONE_IN) { |position| SURVIVORS << strings[position] }
  total = strings.size
  # Explicitly, because the GC keeps objects to which a stale word on the stack refers.
  strings.clear
  { strings: total, kept: SURVIVORS.size, kept_bytes: SURVIVORS.sum(&:bytesize) }
end
