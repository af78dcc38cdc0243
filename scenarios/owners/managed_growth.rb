# frozen_string_literal: true

# A cache that only grows, of objects whose size Ruby knows.

require_relative "../lib/owners"

# What the cache is full of.
class Session < Hash
end

TOTAL = 1_200_000

# A Hash this small lies in its slot from 3.3 on.
Owners.run(expect: RUBY_VERSION < "3.3" ? "ruby.malloc" : "ruby.live_slots") do |scale|
  Owners.keep(TOTAL * scale) { |id| Session[id: id, user: id % 1_000, path: :orders] }
end
