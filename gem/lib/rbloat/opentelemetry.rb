# frozen_string_literal: true

require_relative "../rbloat"

module Rbloat
  # Observable gauges of {Rbloat.stats} for OpenTelemetry.
  module OpenTelemetryAdapter
    # @param meter [::OpenTelemetry::Metrics::Meter]
    # @return [nil]
    def self.install(meter)
      Rbloat.stats.each_key do |name|
        meter.create_observable_gauge("rbloat.#{name}", callback: -> { Rbloat.stats.fetch(name, 0) })
      end
      nil
    end
  end
end
