# frozen_string_literal: true

# A recursion of the main thread was once deep, and RUBY_THREAD_VM_STACK_SIZE lets it be: the VM stack keeps its pages.

require "rbconfig"
require_relative "../lib/scenario"

NAME = "RUBY_THREAD_VM_STACK_SIZE"
STACK_BYTES = 256 << 20

exec({ NAME => STACK_BYTES.to_s }, RbConfig.ruby, $PROGRAM_NAME, *ARGV) unless ENV.key?(NAME)

def sum(number)
  number.zero? ? 0 : number + sum(number - 1)
end

Scenario.run do |scale|
  sum((800_000 * scale).ceil)
  # The Fiber object of the main thread refers to the stack.
  Fiber.new { nil }.resume
  { stack_bytes: STACK_BYTES }
end
