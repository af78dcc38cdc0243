# frozen_string_literal: true

# A leak of small objects alone: every event names the one before it, so the last one keeps them all alive. A struct of
# three members lies wholly in its slot, so malloc has no part in this.

require_relative "lib/scenario"

Event = Struct.new(:number, :kind, :previous)
TOTAL = 10_000_000
LAST = [nil]

Scenario.run(expect: "ruby.live_slots") do |scale|
  events = (TOTAL * scale).round
  events.times { |number| LAST[0] = Event.new(number, :request, LAST[0]) }
  { events: events }
end
