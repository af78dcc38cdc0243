# frozen_string_literal: true

# A Hash that was large once. Up to Ruby 3.2 its table stays as large (ruby/ruby#8748).

require_relative "../lib/scenario"

# The ids that were seen.
module Dedup
  SEEN = {}
end

Scenario.run(commands: {
  "rehash" => lambda do
    Dedup::SEEN.rehash
    {}
  end
}) do |scale|
  count = (2_000_000 * scale).ceil
  count.times { |id| Dedup::SEEN[id] = true }
  (10...count).each { |id| Dedup::SEEN.delete(id) }
  {}
end
