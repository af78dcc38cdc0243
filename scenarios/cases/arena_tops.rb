# frozen_string_literal: true

# Threads fill buffers and empty all of them, which leaves free memory at the top of their arenas. glibc keeps up to twice as much
# there as the largest block with a mapping of its own that was freed, and malloc_trim does not return it.

# Tests start scenarios without RubyGems. Then a trim returns a fourth of this memory.
require "rubygems"
require_relative "../lib/scenario"

THREADS = 4
BYTES = 8_000

Scenario.run do |scale|
  # Has a mapping of its own, which is freed.
  ("x" * (30 << 20)).clear
  count = (5_000 * scale).ceil
  buffers = Array.new(THREADS) { Array.new(count) { +"" } }
  text = "x" * BYTES
  # A collection would leave blocks of its own at the end.
  GC.disable
  Scenario.in_threads(THREADS) do |thread|
    own = buffers[thread]
    own.each { |buffer| buffer << text }
    own.each(&:clear)
  end
  GC.enable
  { buffers: THREADS * count }
end
