# frozen_string_literal: true

require_relative "../pg"

module Rbloat
  module PG
    # Gives each PG::Result a `result_set`, once this file was required: `require "rbloat/pg/result"`.
    module Result
      # @return [ResultSet] a compact copy; the result itself is cleared
      def result_set
        ResultSet.new(self)
      end
    end
  end
end

PG::Result.class_eval { include Rbloat::PG::Result }
