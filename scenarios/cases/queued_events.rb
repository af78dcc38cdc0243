# frozen_string_literal: true

# Threads log faster than the one thread that writes can take the events from its queue, which has no limit
# (reidmorrison/semantic_logger#335). An event has several objects of different classes.

require_relative "../lib/scenario"

# A message that waits to be written.
class Event
  def initialize(number)
    @message = "message #{number} " * 5
    @payload = { number: number, level: :info }
    @tags = Array.new(5) { number }
  end
end

# Writes events in a thread of its own.
class Processor
  def initialize
    @queue = Queue.new
    @output = Queue.new
    @thread = Thread.new { write }
  end

  def log(event)
    @queue << event
  end

  private

  # The output of this program never accepts anything.
  def write
    while (event = @queue.pop)
      @output.pop
      event.freeze
    end
  end
end

LOGGER = Processor.new

@events = 0

def step
  20_000.times { LOGGER.log(Event.new(@events += 1)) }
  4.times { GC.start }
  { objects: @events }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  (2 * scale).ceil.times { step }
  { objects: @events }
end
