# frozen_string_literal: true

# Compressors that were never closed. Their type reports a size to Ruby, but counts a few hundred bytes for zlib's
# state, which takes about 262 KiB.

require "zlib"
require_relative "../lib/owners"

TOTAL = 300

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { Zlib::Deflate.new }
end
