# frozen_string_literal: true

# A bus keeps the handlers of every request: blocks and methods, each with its object, and a setting keeps entries. The lines of the
# handlers are the lines to fix. The public reports: aserafin/grape_logging#7, lipanski/sql-spy#1.

require_relative "../lib/scenario"

# Never forgets a handler.
module Bus
  HANDLERS = []

  def self.subscribe(handler)
    HANDLERS << handler
  end
end

# Subscribes a block.
class Dashboard
  LINE = __LINE__ + 7

  def initialize
    @rows = Array.new(20) { |row| "row #{row} of #{object_id}".ljust(100) }
  end

  def show
    Bus.subscribe(proc { |*| @seen = @rows.size })
  end
end

# Subscribes a method.
class Audit
  LINE = __LINE__ + 6

  def initialize
    @lines = Array.new(20) { |row| "line #{row} of #{object_id}".ljust(100) }
  end

  def note(text)
    @lines << text
  end

  def watch
    Bus.subscribe(method(:note))
  end
end

# Subscribes a method that +define_method+ made.
class Report < Audit
  LINE = __LINE__ + 2

  define_method(:note) do |text|
    @lines << text
  end
end

# Is in a setting, as those of Sinatra and of Rails' +class_attribute+: a block that defines a method has captured the value.
class Entry
  LINE = __LINE__ + 10

  def initialize
    @text = "entry of #{object_id}".ljust(1000)
  end
end

# Has settings.
class Site
  def self.set(name, value)
    define_singleton_method(name) { value }
  end
end

Scenario.run do |scale|
  count = (200 * scale).ceil
  # In a fiber, because its stack disappears with all stale words.
  Fiber.new do
    count.times do
      Dashboard.new.show
      Audit.new.watch
      Report.new.watch
    end
    Site.set(:audit, [])
    count.times { Site.audit << Entry.new }
  end.resume
  lines = [Dashboard, Audit, Report, Entry].to_h { |it| [it.name, it::LINE] }
  { objects: count, lines: lines }
end
