# frozen_string_literal: true

# A leak that totals do not show: each step keeps a few subscribers, while there is less and less garbage, and more and
# more objects of requests in flight.

require_relative "../lib/scenario"

module EventBus
  SUBSCRIBERS = []
end

PER_STEP = 1000
MOST_GARBAGE = 80_000

$in_flight = []
$steps = 0

def step
  $steps += 1
  PER_STEP.times { |number| EventBus::SUBSCRIBERS << "subscriber #{number} of step #{$steps} " * 80 }
  GC.enable
  4.times { GC.start }
  GC.disable
  $in_flight = Array.new(20_000 * $steps) { |number| [number] }
  (MOST_GARBAGE / $steps).times { |number| "row #{number} " * 20 }
  { objects: EventBus::SUBSCRIBERS.size }
end

# Begins a major collection, which the next step ends. Some collections mark at once all the same, and some end when a few objects are
# made, as by the answer, unless there are free slots of their sizes.
def mark
  $in_flight = $in_flight.each_slice(2).map(&:first)
  GC.enable
  100.times do
    GC.start(immediate_mark: false, immediate_sweep: false)
    3.times { JSON.generate({ state: GC.latest_gc_info(:state) }) }
    break if GC.latest_gc_info(:state) == :marking
  end
  { state: GC.latest_gc_info(:state) }
end

Scenario.run(settle: false, commands: { "step" => method(:step), "mark" => method(:mark) }) { step }
