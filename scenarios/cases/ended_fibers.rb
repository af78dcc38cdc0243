# frozen_string_literal: true

# A logger has the level of each fiber in a Hash, and does not delete it (ruby/logger#135). The key is the fiber, which retains the
# thread that ended, and the variables of that thread.

require "fiber"
require_relative "../lib/scenario"

# Writes nothing.
class LevelLogger
  def initialize
    @levels = {}
  end

  def with_level(level)
    before = @levels[Fiber.current]
    @levels[Fiber.current] = level
    yield
  ensure
    @levels[Fiber.current] = before
  end
end

# The result of a health check.
class Probe
  def initialize(number)
    @rows = Array.new(100) { |row| "row #{row} of probe #{number}" }
  end
end

LOG = LevelLogger.new

Scenario.run do |scale|
  probes = (1_500 * scale).ceil
  probes.times do |number|
    Thread.new do
      Thread.current[:probe] = Probe.new(number)
      LOG.with_level(3) { number }
    end.join
  end
  { objects: probes }
end
