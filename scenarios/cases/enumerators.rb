# frozen_string_literal: true

# Feeds are read by `next`, so each keeps an Enumerator with a Fiber, and the Fiber keeps its stack.

require_relative "../lib/scenario"

# Is read from time to time.
class Feed
  def initialize(number)
    @items = Enumerator.new { |items| deep(100) { loop { items << number } } }
  end

  def next
    @items.next
  end

  private

  def deep(depth, &block)
    depth.zero? ? block.call : [1].each { deep(depth - 1, &block) }
  end
end

Scenario.run do |scale|
  open = Array.new((1500 * scale).ceil) { |number| Feed.new(number) }
  open.each(&:next)
  Object.const_set(:OPEN, open)
  { objects: open.size }
end
