# frozen_string_literal: true

require "mysql2"
require_relative "../rbloat"

module Rbloat
  # For the gem mysql2.
  module Mysql2
    # A compact copy of a Mysql2::Result, whose memory is freed. Of the text protocol only, as `client.query` has it:
    # values are strings. Mysql2 gives no access to the bytes of a row but through a Ruby string for each, so these are
    # made once, and are garbage after that; and what it makes of types cannot be made later.
    #
    #     Rbloat::Mysql2::ResultSet.new(client.query(sql, cast: false, cache_rows: false, as: :array))
    class ResultSet < Cells
      # @param result [::Mysql2::Result] best of a query with `cast: false, cache_rows: false`
      # @raise [TypeError] if it is not a Mysql2::Result, or is that of a prepared statement
      # @raise [TypeError, ::Mysql2::Error] where values of it were read before
      def initialize(result)
        expected = ::Mysql2::Result
        raise TypeError, "wrong argument type #{result.class} (expected #{expected})" unless result.is_a?(expected)

        super()
        names = result.fields
        rows = []
        result.each(as: :array, cast: false, cache_rows: false) { |row| rows << row }
        # The encoding of the connection; columns that are binary have no other.
        native_columns(names, encodings(rows, names.size), Array.new(names.size, 0), nil)
        native_rows(rows)
        rows.clear
        result.free
        freeze
      end

      alias fields columns

      private

      def encodings(rows, count)
        Array.new(count) do |column|
          row = rows.find { |values| values[column] }
          row ? row[column].encoding : Encoding::UTF_8
        end
      end
    end
  end
end
