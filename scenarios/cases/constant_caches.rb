# frozen_string_literal: true

# Constant caches whose place of code is gone (`ic_cref`, which the GC does not mark): methods that evaluated constants within
# instance_eval. The objects that have its slot now belong to a thread.

require_relative "../lib/scenario"

# Methods that evaluate a constant in the scope of another object.
module Plugin
  40.times do |number|
    class_eval <<~RUBY, __FILE__, __LINE__ + 1
      def self.init_#{number}(klass)
        klass.instance_eval { @mutex = Thread::Mutex.new }
      end
    RUBY
  end
end

# A row, which knows its feed.
class Row
  def initialize(feed, number)
    @feed = feed
    @text = "row #{number} ".ljust(2500, "r")
  end
end

# The rows of a thread.
class Feed
  def initialize
    @index = { rows: { list: [] } }
  end

  def add(number)
    @index[:rows][:list] << Row.new(self, number)
  end
end

Scenario.run do |scale|
  count = (20_000 * scale).ceil
  full = Thread::Queue.new
  tailer = Thread.new do
    feed = Feed.new
    GC.start
    40.times { |number| Plugin.public_send(:"init_#{number}", Class.new) }
    GC.start
    count.times { |number| feed.add(number) }
    full << true
    sleep
  end
  tailer.name = "tailer"
  full.pop
  { rows: count }
end
