# frozen_string_literal: true

# Memory that a program allocated itself. Ruby knows its size.

require_relative "../lib/owners"

TOTAL = 10_000
BYTES = 5_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { Fiddle::Pointer.malloc(BYTES, Fiddle::RUBY_FREE) }
end
