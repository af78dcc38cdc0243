# frozen_string_literal: true

require_relative "../rbloat"

module Rbloat
  # Gauges of {Rbloat.stats} for a client of StatsD. Call {#update} now and then.
  class StatsdAdapter
    # @param client an object with the method `gauge(name, value)`, such as a `Statsd` or `Datadog::Statsd`
    def initialize(client)
      @client = client
    end

    # Sends all gauges. A negative value is sent as 0: StatsD subtracts it instead of setting it.
    # @return [nil]
    def update
      Rbloat.stats.each { |name, value| @client.gauge("rbloat.#{name}", [value, 0].max) }
      nil
    end
  end
end
