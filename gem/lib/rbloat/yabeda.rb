# frozen_string_literal: true

require "yabeda"
require_relative "../rbloat"

# The metrics in the group `rbloat` of Yabeda.
module Rbloat
  # {Rbloat.stats} for Yabeda, which reads them before each scrape.
  # @api private
  module YabedaAdapter
    GROWTH = Metrics::Growth.new

    # The names of the metrics in the group `rbloat`. Yabeda's exporters add units and `_total`.
    def self.declare(group)
      Metrics.each do |name, help, counter|
        group.public_send(counter ? :counter : :gauge, name, tags: [], comment: help)
      end
    end

    def self.collect
      Rbloat.stats.each do |name, value|
        metric = Yabeda.rbloat.public_send(name)
        Metrics.counter?(name) ? metric.increment({}, by: GROWTH.of(name, value)) : metric.set({}, value)
      end
    end
  end
  private_constant :YabedaAdapter

  Yabeda.configure do
    group(:rbloat) { YabedaAdapter.declare(self) }
    collect { YabedaAdapter.collect }
  end
end
