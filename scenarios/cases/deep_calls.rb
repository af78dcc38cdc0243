# frozen_string_literal: true

# A recursion through blocks was once deep in the main thread, and `ulimit -s` lets it be: the kernel keeps the pages of its stack.

require "rbconfig"
require_relative "../lib/scenario"

NAME = "RUBY_THREAD_VM_STACK_SIZE"
STACK_BYTES = 512 << 20

unless ENV.key?(NAME)
  Process.setrlimit(Process::RLIMIT_STACK, STACK_BYTES)
  exec({ NAME => STACK_BYTES.to_s }, RbConfig.ruby, $PROGRAM_NAME, *ARGV)
end

def depth(left)
  [left].each { |count| return count.zero? ? 0 : 1 + depth(count - 1) }
end

Scenario.run do |scale|
  depth((80_000 * scale).ceil)
  { stack_bytes: STACK_BYTES }
end
