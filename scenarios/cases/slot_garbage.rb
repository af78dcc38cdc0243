# frozen_string_literal: true

# The limits of malloc that services raise (code-dot-org/code-dot-org#18123) do not delay the GC of objects that lie in their slots: no
# malloc'ed memory belongs to them.

require "rbconfig"
require_relative "../lib/scenario"

LIMITS = %w[RUBY_GC_OLDMALLOC_LIMIT RUBY_GC_OLDMALLOC_LIMIT_MAX].freeze

exec(LIMITS.to_h { |name| [name, "2000000000"] }, RbConfig.ruby, $PROGRAM_NAME, *ARGV) unless ENV.key?(LIMITS.first)

# One line of a log.
class Entry
  def initialize(number)
    @number = number
  end
end

Scenario.run(settle: false) do |scale|
  count = (2_000_000 * scale).ceil
  # In a thread, because its stack disappears.
  Thread.new do
    Object.const_set(:LOG, Array.new(count + 100_000) { |number| Entry.new(number) })
    # Without free slots, the GC would run.
    LOG.pop while LOG.size > count
  end.join
  3.times { GC.start }
  LOG.clear
  { objects: count }
end
