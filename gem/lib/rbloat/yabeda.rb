# frozen_string_literal: true

require "yabeda"
require_relative "../rbloat"

# Gauges of Rbloat.stats, which Yabeda reads before each scrape.
Yabeda.configure do
  group :rbloat do
    Rbloat.stats.each_key { |name| gauge name, tags: [], comment: "See Rbloat.stats" }
  end

  collect do
    Rbloat.stats.each { |name, value| Yabeda.rbloat.public_send(name).set({}, value) }
  end
end
