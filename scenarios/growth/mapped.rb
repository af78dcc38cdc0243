# frozen_string_literal: true

# A library that maps its own heap by mmap(2): memory that is neither malloc's nor Ruby's.

require "fiddle"
require_relative "../lib/scenario"

# Objects with a heap of their own.
module Engine
  TYPES = [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, *[Fiddle::TYPE_INT] * 3, Fiddle::TYPE_LONG].freeze
  MMAP = Fiddle::Function.new(Fiddle.dlopen(nil)["mmap"], TYPES, Fiddle::TYPE_VOIDP)
  SIZE = 640 << 10
  POOL = []
  DATA = ("v" * SIZE).freeze
  READ_AND_WRITE = 3
  PRIVATE_AND_ANONYMOUS = 0x22

  def self.start
    memory = MMAP.call(0, SIZE, READ_AND_WRITE, PRIVATE_AND_ANONYMOUS, -1, 0)
    memory[0, SIZE] = DATA
    POOL << memory
  end
end

# Fiddle makes two pointers for each call, one of which is garbage: half of the new ones.
def step
  90.times { Engine.start }
  3.times { GC.start }
  { objects: Engine::POOL.size }
end

Scenario.run(commands: { "step" => method(:step) }) { step }
