# frozen_string_literal: true

# An engine of scripts keeps its cells by values that are floating-point numbers or, in the bits of a NaN, a type and a pointer, as LuaJIT
# and SpiderMonkey do ("NaN boxing"). Fiddle stands for the engine.

require "fiddle"
require_relative "../lib/scenario"

# Has a stack of values, to which one object refers.
module Engine
  CELL_BYTES = 240
  STRING = 0xfff9 << 48

  class << self
    def run(count)
      @stack = Fiddle::Pointer.new(Fiddle.malloc(8 * count), 8 * count)
      count.times { |number| @stack[8 * number, 8] = [STRING | cell(number)].pack("Q") }
    end

    private

    def cell(number)
      address = Fiddle.malloc(CELL_BYTES)
      Fiddle::Pointer.new(address, CELL_BYTES)[0, CELL_BYTES] = number.to_s.ljust(CELL_BYTES)
      address
    end
  end
end

Scenario.run do |scale|
  count = (250_000 * scale).ceil
  Engine.run(count)
  { cells: count, cell_bytes: Engine::CELL_BYTES * count }
end
