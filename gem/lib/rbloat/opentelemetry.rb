# frozen_string_literal: true

require_relative "../rbloat"

module Rbloat
  # Observable gauges and counters of {Rbloat.stats} for OpenTelemetry.
  module OpenTelemetryAdapter
    # @param meter [::OpenTelemetry::Metrics::Meter]
    # @return [nil]
    def self.install(meter)
      Metrics.each do |name, help, counter|
        create = counter ? :create_observable_counter : :create_observable_gauge
        unit = { "bytes" => "By", "seconds" => "s" }.fetch(name[/[a-z]+\z/], "1")
        meter.public_send(create, "rbloat.#{name}", unit: unit, description: help,
                                                    callback: -> { Rbloat.stats.fetch(name, 0) })
      end
      nil
    end
  end
end
