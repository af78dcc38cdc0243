# frozen_string_literal: true

require "prometheus/client"
require_relative "../rbloat"

module Rbloat
  # Gauges of {Rbloat.stats} for prometheus-client and its fork prometheus-client-mmap. Call {#update} before each
  # scrape.
  class PrometheusAdapter
    # @param registry [::Prometheus::Client::Registry]
    def initialize(registry = ::Prometheus::Client.registry)
      text = "See Rbloat.stats"
      # The fork takes positional arguments.
      keywords = registry.method(:gauge).parameters.include?(%i[keyreq docstring])
      @gauges = Rbloat.stats.to_h do |name, _value|
        [name, keywords ? registry.gauge(:"rbloat_#{name}", docstring: text) : registry.gauge(:"rbloat_#{name}", text)]
      end
      @labels = keywords ? [] : [{}]
    end

    # Sets all gauges.
    # @return [nil]
    def update
      Rbloat.stats.each { |name, value| @gauges[name]&.set(*@labels, value) }
      nil
    end
  end
end
