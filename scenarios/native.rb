# frozen_string_literal: true

# Native memory in use to which no Ruby object refers, as an extension leaves it behind that forgets to free. Ruby
# cannot see it, neither in GC.stat nor in ObjectSpace.

require "fiddle"
require_relative "lib/malloc"
require_relative "lib/scenario"

TOTAL_BYTES = 400_000_000
BYTES = (600..5_000).freeze

Scenario.run(expect: "native.unreachable") do |scale|
  memset = Fiddle::Function.new(
    Fiddle::Handle::DEFAULT["memset"], [Fiddle::TYPE_LONG, Fiddle::TYPE_INT, Fiddle::TYPE_SIZE_T], Fiddle::TYPE_LONG
  )
  random = Random.new(1)
  blocks = lost = 0
  chunk_bytes = Malloc.growth do
    while lost < TOTAL_BYTES * scale
      bytes = random.rand(BYTES)
      # The address is used once, as a number, and dropped. The pattern is no valid address.
      memset.call(Fiddle.malloc(bytes), 0xA5, bytes)
      blocks += 1
      lost += bytes
    end
  end
  { blocks: blocks, block_bytes: lost, chunk_bytes: chunk_bytes }
end
