# frozen_string_literal: true

# Each client starts a thread, which parses a deep document and then waits forever. The public reports:
# ruby-concurrency/concurrent-ruby#958, patvice/ruby_llm-mcp#157, apollographql/optics-agent-ruby#58.

require_relative "../lib/scenario"

# Has a thread of its own, which never ends.
class Client
  STARTED = __LINE__ + 4

  def initialize(parsed)
    @parsed = parsed
    @thread = Thread.new { run }
  end

  private

  def run
    parse(500)
    @parsed << true
    Thread::Queue.new.pop
  end

  def parse(depth)
    depth.zero? ? 0 : [1].map { parse(depth - 1) }.first
  end
end

Scenario.run do |scale|
  count = (300 * scale).ceil
  parsed = Thread::Queue.new
  count.times { Client.new(parsed) }
  count.times { parsed.pop }
  { objects: count, started: Client::STARTED }
end
