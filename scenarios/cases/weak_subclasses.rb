# frozen_string_literal: true

# Classes and singleton classes that nothing refers to but the list of subclasses of their superclass, which is weak. The
# GC is disabled, so that the garbage stays.

require_relative "../lib/scenario"

# Its instances have a singleton class each.
class Base
  def initialize(number)
    define_singleton_method(:number) { number }
  end
end

Scenario.run(settle: false) do |scale|
  GC.start
  GC.disable
  count = (20_000 * scale).ceil
  # In a thread of its own, because its stack disappears.
  Thread.new do
    count.times do |index|
      Base.new(index)
      Class.new(Base) { def own; end }
    end
  end.join
  { classes: 2 * count, objects: count }
end
