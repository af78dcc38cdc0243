# frozen_string_literal: true

require "mysql2"
require_relative "../results"

module Rbloat
  # A compact copy of a Mysql2::Result. The original is freed. Works for the text protocol (`client.query`) only, and
  # all values are strings. mysql2 gives access to values only as Ruby strings, so each value becomes a string once,
  # which is garbage afterwards.
  #
  #     Rbloat::Mysql2ResultSet.new(client.query(sql, cast: false, cache_rows: false, as: :array))
  class Mysql2ResultSet < Cells
    # @param result [::Mysql2::Result] fastest if the query has the options `cast: false, cache_rows: false`
    # @raise [TypeError] if it is not a Mysql2::Result, or is the result of a prepared statement
    # @raise [TypeError, ::Mysql2::Error] if values of it were read before
    def initialize(result)
      expected = ::Mysql2::Result
      raise TypeError, "wrong argument type #{result.class} (expected #{expected})" unless result.is_a?(expected)

      super()
      names = result.fields
      rows = []
      result.each(as: :array, cast: false, cache_rows: false) { |row| rows << row }
      # Binary columns have another encoding than the connection.
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
