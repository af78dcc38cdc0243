# frozen_string_literal: true

# Six lines keep what they make, each of another class or at a known ratio: in a method, a block, a Fiber, in C code, and two lines
# with the same class, 3 : 1. Beside them are lines that make as much and keep nothing.

require_relative "load"

Event = Struct.new(:at, :who, :what)
Row = Struct.new(:id, :name)
DUMP = Marshal.dump(Array.new(10) { |i| [i, "row"] })

class Tracker
  SEEN = []

  def track(number)
    2.times do
      event = Event.new(number, 7, 9)
      Load.check(event)
      SEEN << event
    end
  end
end

class Cache
  STORE = {}

  def hot(number)
    pair = [1, number, number + 1]
    Load.check(pair)
    STORE[number] = pair
  end

  def cold(number)
    pair = [2, number, number]
    Load.check(pair)
    STORE[-number] = pair
  end
end

class Import
  ROWS = []

  def self.reader
    Fiber.new do
      loop do
        row = Row.new(Fiber.yield, "row")
      Load.check(row)
      ROWS << row
      end
    end
  end

  # A Fiber belongs to the thread that resumes it first.
  def self.row(number)
    @reader ||= reader.tap(&:resume)
    @reader.resume(number)
  end
end

class Feed
  KEPT = []

  def self.load
    KEPT << Marshal.load(DUMP)
  end
end

class Garbage
  def self.make(number)
    [Event.new(number, 1, 2), Row.new(number, "none"), [3, number, number]].each { |it| Load.check(it) }.size
  end
end

tracker, cache = Tracker.new, Cache.new
Load.run(threads: 1) do |number|
  Garbage.make(number)
  tracker.track(number)
  3.times { |index| cache.hot(number * 3 + index) }
  cache.cold(number)
  Import.row(number)
  Feed.load if number % 4 == 0
end
