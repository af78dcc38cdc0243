# frozen_string_literal: true

# Objects that were large once, and keep the memory: an Array that shift has emptied, and Strings that were cut. The contents of
# the Array are in a hidden one, of which it is a slice. The request "copy" replaces them by copies.

require_relative "../lib/scenario"

# The jobs that wait.
module Backlog
  JOBS = []
end

# The buffers of a pool of connections.
module Pool
  BUFFERS = []
end

Scenario.run(commands: {
  "copy" => lambda do
    Backlog::JOBS.replace(Backlog::JOBS + [])
    Pool::BUFFERS.each { |buffer| buffer.replace(buffer + "") }
    4.times { GC.start }
    {}
  end
}) do |scale|
  jobs = (6_000_000 * scale).ceil
  jobs.times { |number| Backlog::JOBS << number }
  (jobs - 10).times { Backlog::JOBS.shift }
  (40 * scale).ceil.times { Pool::BUFFERS << ("x" * 1_000_000).tap { |buffer| buffer.slice!(100..) } }
  { jobs: Backlog::JOBS.size, buffers: Pool::BUFFERS.size }
end
