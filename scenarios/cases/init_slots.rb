# frozen_string_literal: true

# RUBY_GC_HEAP_INIT_SLOTS of millions makes Ruby keep free slots that never held an object (ruby/ruby#18433). From 3.3 on there is
# a variable for each size of slots, and the slots exist once garbage has filled them. The request "compact" compacts the heap.

require "rbconfig"
require_relative "../lib/scenario"

SLOTS = 3_000_000
NAME = RUBY_VERSION < "3.3" ? "RUBY_GC_HEAP_INIT_SLOTS" : "RUBY_GC_HEAP_0_INIT_SLOTS"

exec({ NAME => SLOTS.to_s }, RbConfig.ruby, $PROGRAM_NAME, *ARGV) unless ENV.key?(NAME)

Scenario.run do |_|
  SLOTS.times { Object.new } if NAME != "RUBY_GC_HEAP_INIT_SLOTS"
  { variable: "#{NAME}=#{SLOTS}" }
end
