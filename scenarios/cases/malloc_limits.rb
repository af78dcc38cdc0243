# frozen_string_literal: true

# RUBY_GC_MALLOC_LIMIT and its like let garbage grow to gigabytes before it is collected.

require "rbconfig"
require_relative "../lib/scenario"

LIMITS = %w[RUBY_GC_MALLOC_LIMIT RUBY_GC_MALLOC_LIMIT_MAX RUBY_GC_OLDMALLOC_LIMIT RUBY_GC_OLDMALLOC_LIMIT_MAX].freeze

unless ENV.key?(LIMITS.first)
  exec(LIMITS.to_h { |name| [name, "2000000000"] }, RbConfig.ruby, $PROGRAM_NAME, *ARGV)
end

Scenario.run(settle: false) do |scale|
  (200 * scale).ceil.times { |number| "row #{number} " * 80_000 }
  { variables: LIMITS }
end
