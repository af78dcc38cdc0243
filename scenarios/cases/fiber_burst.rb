# frozen_string_literal: true

# A burst of fibers that have all ended: Ruby keeps their stacks for new ones (ruby/ruby#6406). "step" starts as many again.

require_relative "../lib/scenario"

FIBERS = 1_500
DEPTH = 60

def deep(depth)
  depth.zero? ? Fiber.yield : [1].each { deep(depth - 1) }
end

def burst(count)
  fibers = Array.new(count) { Fiber.new { deep(DEPTH) } }
  2.times { fibers.each(&:resume) }
end

count = 0
again = lambda do
  burst(count)
  GC.start
  {}
end

Scenario.run(commands: { "step" => again }) do |scale|
  count = (FIBERS * scale).ceil
  burst(count)
  { fibers: 0 }
end
