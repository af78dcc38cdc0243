# frozen_string_literal: true

# One small object of each request is kept, about one in 5,000 that are made.

require_relative "load"

Event = Struct.new(:at, :who, :what)

class Tracker
  SEEN = []

  def track(number)
    SEEN << Event.new(number, 7, 9)
  end
end

tracker = Tracker.new
Load.run(threads: 4) do |number|
  2.times { Load.garbage }
  tracker.track(number)
  Load.garbage
  sleep 0.002
end
