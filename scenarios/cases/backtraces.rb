# frozen_string_literal: true

# A buffer of errors keeps exceptions with deep backtraces. The public reports: rubygems/rubygems.org#515,
# rollbar/rollbar-gem#996.

require_relative "../lib/scenario"

# Keeps exceptions without a limit.
module Errors
  RECENT = []

  class << self
    def capture(depth)
      fail_at(depth)
    rescue StandardError => e
      RECENT << e
    end

    private

    def fail_at(depth)
      depth.zero? ? raise("no row") : fail_at(depth - 1)
    end
  end
end

Scenario.run do |scale|
  count = (1200 * scale).ceil
  count.times { Errors.capture(2500) }
  { objects: count }
end
