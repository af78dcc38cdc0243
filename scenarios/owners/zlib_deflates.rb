# frozen_string_literal: true

# Compressors that were never closed. They have a function that tells Ruby their size, which counts zlib's state for a
# few hundred bytes: it is a quarter of a megabyte.

require "zlib"
require_relative "../lib/owners"

TOTAL = 300

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { Zlib::Deflate.new }
end
