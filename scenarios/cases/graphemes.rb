# frozen_string_literal: true

# String#grapheme_clusters leaks a regular expression for each String that is not in UTF-8, until 3.1.5, 3.2.3 and 3.3.1
# (ruby/ruby#9414). The request "step" cuts more texts.

require_relative "../lib/scenario"

# Cuts texts.
module Cut
  TEXT = "a short text".encode("UTF-16LE")

  def self.first_clusters(count)
    count.times { TEXT.grapheme_clusters.first(3) }
  end
end

def step
  before = Scenario.rss_bytes
  Cut.first_clusters(2000)
  2.times { GC.start }
  { grown_bytes: Scenario.rss_bytes - before }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  Cut.first_clusters((6000 * scale).ceil)
  step
end
