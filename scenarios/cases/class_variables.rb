# frozen_string_literal: true

# Rows in a list. Memory that once referred to them is that of the variables of thousands of classes by now, which have more room than
# variables. Seen at a static site generator, whose documents were retained by WEBrick's classes of HTTP status codes.

require_relative "../lib/boxes"
require_relative "../lib/scenario"

# The classes.
module Codes
  def self.define(number)
    code = Class.new(StandardError)
    code.instance_variable_set(:@number, number)
    code.instance_variable_set(:@phrase, number) if number.odd?
    const_set("C#{number}", code)
  end
end

Scenario.run do |scale|
  count = (3000 * scale).ceil
  KEPT = Box.around(Array.new(count) { Row.new }, 4)
  # In a fiber, because its stack disappears with all stale words.
  Fiber.new do
    rows = KEPT.innermost
    # The variables of blocks, of several sizes.
    rows.map { |row| ->(_one = nil, _two = nil, three = row) { -> { three } }.call }
    rows.map { |row| ->(_one = nil, _two = nil, _three = row, _four = row, five = row) { -> { five } }.call }
    nil
  end.resume
  4.times { GC.start }
  count.times { |number| Codes.define(number) }
  { objects: count }
end
