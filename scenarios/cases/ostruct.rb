# frozen_string_literal: true

# An OpenStruct has a singleton class with two methods for each of its fields. Their memory belongs to the object.

require "ostruct"
require_relative "../lib/scenario"

Scenario.run do |scale|
  rows = Array.new((15_000 * scale).ceil) do |number|
    OpenStruct.new(id: number, name: "n#{number}", total: number * 2, city: "c", zip: "z", at: number)
  end
  Object.const_set(:REPORT_ROWS, rows)
  { objects: rows.size }
end
