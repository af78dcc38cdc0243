# frozen_string_literal: true

# As fiddle_pointers, with the ffi gem. Its objects have no type, hence no function that reports a size.

require "rubygems"
require "ffi"
require_relative "../lib/owners"

TOTAL = 10_000
BYTES = 5_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { FFI::MemoryPointer.new(BYTES) }
end
