# frozen_string_literal: true

require_relative "../rbloat"

module Rbloat
  # {Rbloat.stats} for a client of StatsD: gauges, and counts of what was added since the last call. Call {#update} now
  # and then.
  class StatsdAdapter
    # @param client an object with the methods `gauge(name, value)` and `count(name, count)`, such as a `Statsd` or
    #   `Datadog::Statsd`
    def initialize(client)
      @client = client
      @growth = Metrics::Growth.new
    end

    # Sends all figures. A negative gauge is sent as 0: StatsD subtracts it instead of setting it.
    # @return [nil]
    def update
      Rbloat.stats.each do |name, value|
        if Metrics.counter?(name)
          grown = @growth.of(name, value)
          @client.count("rbloat.#{name}", grown) if grown.positive?
        else
          @client.gauge("rbloat.#{name}", [value, 0].max)
        end
      end
      nil
    end
  end
end
