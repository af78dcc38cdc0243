# frozen_string_literal: true

# JSON writers with their output in their own buffers.

require "rubygems"
require "oj"
require_relative "../lib/owners"

TOTAL = 2_000

Owners.run do |scale|
  order = { "name" => "x" * 100, "total" => 1 }
  Owners.keep(TOTAL * scale) do
    writer = Oj::StringWriter.new(mode: :strict)
    writer.push_array
    100.times { writer.push_value(order) }
    writer
  end
end
