# frozen_string_literal: true

# Each request wraps the callback of a client that lives long, and never restores the one before it
# (newrelic/newrelic-ruby-agent#1518). So one variable of the client retains a chain with the data of all requests.

require_relative "../lib/scenario"

# What one request measured.
class Segment
  def initialize(number)
    @notes = "request #{number} " * 100
  end

  def finish(error)
    @error = error
  end
end

# Has one callback.
class Client
  attr_accessor :failed
end

CLIENT = Client.new

# Wraps the callbacks of clients.
module Instrumentation
  LINE = __LINE__ + 6

  def self.request(client, number)
    segment = Segment.new(number)
    original = client.failed
    # Keeps the callback of the request before it.
    client.failed = lambda do |error|
      segment.finish(error)
      original&.call(error)
    end
  end
end

@requests = 0

def step
  # In a thread, because its stack disappears.
  Thread.new { 10_000.times { Instrumentation.request(CLIENT, @requests += 1) } }.join
  4.times { GC.start }
  { objects: @requests }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  (2 * scale).ceil.times { step }
  { objects: @requests, line: Instrumentation::LINE }
end
