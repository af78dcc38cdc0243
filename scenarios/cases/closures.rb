# frozen_string_literal: true

# Blocks that outlive the method around them retain its local variables, at any depth, although no block uses them. Each
# kind of closure has a class of strings of its own, all of which are live.

require_relative "../lib/scenario"

# The strings that the closures retain.
module Text
  InBlock = Class.new(String)
  InNestedBlock = Class.new(String)
  InThirdBlock = Class.new(String)
  InLambda = Class.new(String)
  InBinding = Class.new(String)
  InMethod = Class.new(String)
  InThread = Class.new(String)
  InFiber = Class.new(String)
  InEnumerator = Class.new(String)
end

# The roots of the closures.
module Kept
  CLOSURES = []

  # Has singleton methods made of blocks.
  module Settings
  end
end

# Returns a string with memory of its own; a copy would share it.
def make(owner)
  owner.new(capacity: 20_000).concat(rand.to_s.ljust(19_999, "x"))
end

# Methods whose variable +text+ a closure captures.
module Capture
  class << self
    def block(text = make(Text::InBlock))
      Kept::CLOSURES << proc {}
    end

    def nested_block(text = make(Text::InNestedBlock))
      [1].each { |number| Kept::CLOSURES << proc { number } }
    end

    def third_block(text = make(Text::InThirdBlock))
      [1].each { |outer| [2].each { |inner| Kept::CLOSURES << proc { outer + inner } } }
    end

    def lambda_in_block(text = make(Text::InLambda))
      [1].each { |number| Kept::CLOSURES << ->(more) { number + more } }
    end

    def binding_in_block(text = make(Text::InBinding))
      [1].each { |_number| Kept::CLOSURES << binding }
    end

    def method_in_block(index, text = make(Text::InMethod))
      [1].each { |number| Kept::Settings.define_singleton_method("key#{index}") { number } }
    end

    def thread_in_block(text = make(Text::InThread))
      [1].each { |number| Thread.new { sleep if number } }
    end

    def fiber_in_block(text = make(Text::InFiber))
      [1].each { |number| Kept::CLOSURES << Fiber.new { number } }
    end

    def enumerator_in_block(text = make(Text::InEnumerator))
      [1].each { |number| Kept::CLOSURES << Enumerator.new { |values| values << number } }
    end
  end
end

Scenario.run do |scale|
  count = (20 * scale).ceil
  # In a fiber, because its stack disappears with all stale words.
  Fiber.new do
    count.times do |index|
      Capture.method_in_block(index)
      (Capture.singleton_methods - [:method_in_block]).each { |name| Capture.public_send(name) }
    end
  end.resume
  # A thread that has not begun is in no block.
  Thread.pass until Thread.list.drop(1).all?(&:stop?)
  { classes: Text.constants.map { |name| "Text::#{name}" }, objects: count }
end
