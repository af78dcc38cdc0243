# frozen_string_literal: true

# A leak of small objects only. Every event refers to the one before it, so the last one retains them all. A struct of
# three members fits into its slot, so malloc is not involved.

require_relative "lib/scenario"

Event = Struct.new(:number, :kind, :previous)
TOTAL = 10_000_000
LAST = [nil]

Scenario.run(expect: "ruby.live_slots") do |scale|
  events = (TOTAL * scale).round
  events.times { |number| LAST[0] = Event.new(number, :request, LAST[0]) }
  { events: events }
end
