# frozen_string_literal: true

# Hundreds of threads that wait at their deepest point of recursion. The kernel never takes back a page of a stack that
# was touched, even if the thread no longer needs it.

require_relative "lib/scenario"

THREADS = 400
# About 0.8 MiB of the default machine stack of 1 MiB. Every level goes through a block that C calls, because Ruby code
# that calls Ruby code only grows the VM stack. (Integer#times will not do: since 3.3 it is written in Ruby.)
DEPTH = 750

def descend(levels)
  return Scenario.park if levels.zero?

  1.upto(1) { descend(levels - 1) }
end

Scenario.run(expect: "stack.threads") do |scale|
  count = (THREADS * scale).round
  Scenario.in_threads(count) { descend(DEPTH) }
  { stacks: count, depth: DEPTH }
end
