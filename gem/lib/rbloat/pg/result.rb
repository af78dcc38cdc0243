# frozen_string_literal: true

require_relative "../pg"

module Rbloat
  module PG
    # Adds the method `result_set` to PG::Result. To use it, `require "rbloat/pg/result"`.
    module Result
      # @return [ResultSet] a compact copy; the original is cleared
      def result_set
        ResultSet.new(self)
      end
    end
  end
end

PG::Result.class_eval { include Rbloat::PG::Result }
