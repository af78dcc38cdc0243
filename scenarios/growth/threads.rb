# frozen_string_literal: true

# Threads that accumulate: each step starts some that never end.

require_relative "../lib/scenario"

PER_STEP = 50

def step
  PER_STEP.times { Thread.new { sleep } }
  # When a thread sleeps, it has its stack.
  Thread.pass until Thread.list.count { |thread| thread.status == "sleep" } >= Thread.list.size - 1
  { objects: Thread.list.size }
end

Scenario.run(commands: { "step" => method(:step) }) { step }
