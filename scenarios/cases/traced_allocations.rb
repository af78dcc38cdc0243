# frozen_string_literal: true

# The tracing of allocations is left on: objspace has an entry of 72 bytes for each object, behind an object of the class
# Object that programs do not see.

require "objspace"
require_relative "../lib/scenario"

ROWS = []

Scenario.run do |scale|
  ObjectSpace.trace_object_allocations_start
  count = (600_000 * scale).ceil
  count.times { |number| ROWS << number.to_s }
  { objects: count }
end
