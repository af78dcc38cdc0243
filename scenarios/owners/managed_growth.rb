# frozen_string_literal: true

# A cache that only grows, of objects that Ruby knows all about.

require_relative "../lib/owners"

# What the cache is full of.
class Session < Hash
end

TOTAL = 1_200_000

Owners.run(expect: "ruby.live_slots") do |scale|
  Owners.keep(TOTAL * scale) { |id| Session[id: id, user: id % 1_000, path: :orders] }
end
