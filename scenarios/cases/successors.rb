# frozen_string_literal: true

# A worker whose job fails makes its successor, which keeps the thread that ended (sidekiq/sidekiq#7006). So the one worker in
# the pool retains all that ever were.

require_relative "../lib/scenario"

# Runs a job in a thread of its own.
class Worker
  attr_reader :thread

  def initialize(pool, before = nil)
    @pool = pool
    @before = before
    @job = "payload " * 2000
  end

  def start
    @thread = Thread.new { run }
  end

  def run
    raise
  rescue StandardError
    @pool.replace(self)
  end
end

# Has one worker.
class Pool
  attr_reader :workers

  def initialize
    @workers = [Worker.new(self)]
  end

  def replace(worker)
    @workers.replace([Worker.new(self, worker.thread)])
  end
end

POOL = Pool.new

Scenario.run do |scale|
  count = (4000 * scale).ceil
  count.times { POOL.workers.last.start.join }
  { objects: count + 1 }
end
