# frozen_string_literal: true

# Many small regular expressions, as of routes, and a few large ones, whose programs lie behind their first block. The request "clear_large"
# releases the large ones, and "clear_small" the others.

require_relative "../lib/scenario"

module Routes
  ALL = []

  def self.add(count)
    count.times { |number| ALL << /\/path#{number}\/(\d+)/ }
  end
end

module Spam
  WORDS = []

  def self.add(count)
    count.times do |list|
      WORDS << Regexp.new((1..40_000).map { |word| "w#{list}ord#{word * 7919 % 1_000_003}" }.join("|"))
    end
  end
end

def clear(list)
  # Not the resident memory: an allocator may keep what was freed.
  before = ObjectSpace.memsize_of_all(Regexp)
  list.clear
  GC.start
  { fell_bytes: before - ObjectSpace.memsize_of_all(Regexp) }
end

Scenario.run(
  commands: { "clear_large" => -> { clear(Spam::WORDS) }, "clear_small" => -> { clear(Routes::ALL) } }
) do |scale|
  Routes.add(2000)
  Spam.add((24 * scale).ceil)
  GC.start
  {}
end
