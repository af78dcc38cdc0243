# frozen_string_literal: true

# As fiddle_pointers, through the ffi gem: its objects are of the untyped kind that has no function to tell a size.

require "ffi"
require_relative "../lib/owners"

TOTAL = 10_000
BYTES = 5_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { FFI::MemoryPointer.new(BYTES) }
end
