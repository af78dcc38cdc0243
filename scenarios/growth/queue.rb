# frozen_string_literal: true

# A queue without a limit: each task is an array with a block, which captured a string. The strings have nearly all memory.

require_relative "../lib/scenario"

# The tasks that wait.
module Mailer
  QUEUE = []

  def self.post(*arguments, &task)
    QUEUE << [task, arguments]
  end

  def self.deliver(number)
    body = "m" * (20_000 + number % 10)
    post { body.size }
  end
end

def step
  300.times { |number| Mailer.deliver(number) }
  { objects: Mailer::QUEUE.size }
end

Scenario.run(commands: { "step" => method(:step) }) { step }
