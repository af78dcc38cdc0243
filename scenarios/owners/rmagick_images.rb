# frozen_string_literal: true

# Images that were never destroyed, such as those of a thumbnailer.

require "rmagick"
require_relative "../lib/owners"

TOTAL = 300

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { Magick::Image.new(200, 150) }
end
