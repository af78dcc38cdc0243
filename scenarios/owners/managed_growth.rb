# frozen_string_literal: true

# A cache that only grows, of objects whose size Ruby knows.

require_relative "../lib/owners"

# What the cache is full of.
class Session < Hash
end

TOTAL = 1_200_000

# From Ruby 3.3 on, such a small Hash fits into its slot.
Owners.run do |scale|
  Owners.keep(TOTAL * scale) { |id| Session[id: id, user: id % 1_000, path: :orders] }
end
