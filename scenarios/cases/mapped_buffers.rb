# frozen_string_literal: true

# Large buffers of IO::Buffer have mappings of their own, which belong neither to malloc nor to Ruby's heap. The request "free" frees
# them.

require_relative "../lib/scenario"

# The frames that were received.
module Frames
  RING = []
end

Scenario.run(commands: {
  "free" => lambda do
    Frames::RING.each(&:free)
    {}
  end
}) do |scale|
  count = (80 * scale).ceil
  if defined?(IO::Buffer)
    Warning[:experimental] = false
    count.times do
      frame = IO::Buffer.new(1 << 20)
      frame.set_string("x" * (1 << 20))
      Frames::RING << frame
    end
  end
  { buffers: Frames::RING.size }
end
