# frozen_string_literal: true

# Three Ractors, with lists of free slots of their own, keep a small object in each round.

require_relative "load"

$VERBOSE = nil
Event = Struct.new(:at, :who, :what)

class Tracker
  def track(kept, number)
    kept << Event.new(number, 7, 9)
  end
end

Array.new(3) do
  Ractor.new do
    kept = []
    tracker = Tracker.new
    number = 0
    loop do
      Array.new(1500) { |i| "item #{i} " * 4 }.join.size
      10.times { tracker.track(kept, number += 1) }
    end
  end
end
Load.run(threads: 1) { sleep 0.01 }
