# frozen_string_literal: true

# A few live strings of 40 MiB, such as uploads in memory. malloc gives each of them its own mapping.

require_relative "lib/scenario"

TOTAL = 12
# Above 32 MiB, the maximum of malloc's threshold for mappings.
BYTES = 40 * 1024 * 1024
UPLOADS = []

Scenario.run(expect: "ruby.malloc") do |scale|
  (TOTAL * scale).ceil.times { UPLOADS << "x" * BYTES }
  { strings: UPLOADS.size, bytes: UPLOADS.sum(&:bytesize) }
end
