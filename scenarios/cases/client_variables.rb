# frozen_string_literal: true

# Each client of an API puts a fiber-local variable of its own into the main thread (drbrain/net-http-persistent#98).

require_relative "../lib/scenario"

# A client with a buffer.
class Client
  def initialize
    @buffer = "x" * 4_000
  end

  def get
    Thread.current[:"connection_#{object_id}"] = [self]
  end
end

Scenario.run do |scale|
  count = (15_000 * scale).ceil
  count.times { Client.new.get }
  { clients: count }
end
