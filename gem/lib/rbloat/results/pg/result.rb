# frozen_string_literal: true

require_relative "../pg"

# The extension of PG::Result.
module Rbloat
  # Adds the method `result_set` to PG::Result. To use it, `require "rbloat/results/pg/result"`.
  module PGResult
    # @return [PGResultSet] which takes over the memory of this result, and clears it
    def result_set
      PGResultSet.new(self)
    end
  end
  private_constant :PGResult

  ::PG::Result.include(PGResult)
end
