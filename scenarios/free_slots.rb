# frozen_string_literal: true

# Millions of small objects, of which one in 50 is still alive. Every heap page has a few of them, so Ruby can free
# none of its pages: fragmentation inside Ruby's heap. The objects fit into their slots, and form a chain instead of
# an array, so malloc is not involved.

require_relative "lib/scenario"

Row = Struct.new(:number, :previous)
TOTAL = 10_000_000
KEEP_ONE_IN = 50
SURVIVORS = []

def chain_of(length)
  last = nil
  length.times { |number| last = Row.new(number, last) }
  last
end

# Cuts every link, because a survivor must not retain its neighbours.
def keep_some_of(row)
  while row
    previous = row.previous
    row.previous = nil
    SURVIVORS << row if (row.number % KEEP_ONE_IN).zero?
    row = previous
  end
end

Scenario.run(expect: "ruby.free_slots") do |scale|
  rows = (TOTAL * scale).round
  keep_some_of(chain_of(rows))
  { rows: rows, kept: SURVIVORS.size }
end
