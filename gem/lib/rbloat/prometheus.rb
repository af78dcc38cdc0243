# frozen_string_literal: true

require "prometheus/client"
require_relative "../rbloat"

module Rbloat
  # {Rbloat.stats} for prometheus-client and its fork prometheus-client-mmap: gauges such as `rbloat_rss_bytes`, and
  # counters such as `rbloat_auto_trim_returned_bytes_total`. Call {#update} before each scrape.
  class PrometheusAdapter
    # @param registry [::Prometheus::Client::Registry]
    def initialize(registry = ::Prometheus::Client.registry)
      # The fork takes positional arguments.
      @keywords = registry.method(:gauge).parameters.include?(%i[keyreq docstring])
      @growth = Metrics::Growth.new
      @metrics = {}
      Metrics.each do |name, help, counter|
        kind, suffix = counter ? [:counter, "_total"] : [:gauge, ""]
        @metrics[name] = add(registry, kind, :"rbloat_#{name}#{suffix}", help)
      end
    end

    # Sets all gauges, and adds to all counters.
    # @return [nil]
    def update
      Rbloat.stats.each do |name, value|
        metric = @metrics[name] or next
        Metrics.counter?(name) ? increment(metric, @growth.of(name, value)) : set(metric, value)
      end
      nil
    end

    private

    def add(registry, kind, name, help)
      @keywords ? registry.public_send(kind, name, docstring: help) : registry.public_send(kind, name, help)
    end

    def increment(metric, by)
      @keywords ? metric.increment(by: by) : metric.increment({}, by)
    end

    def set(metric, value)
      @keywords ? metric.set(value) : metric.set({}, value)
    end
  end
end
