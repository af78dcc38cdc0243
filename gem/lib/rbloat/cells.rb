# frozen_string_literal: true

module Rbloat
  # A compact, immutable table: all of its cells are bytes in one block of memory, which the GC knows of, and one object
  # to it. Rows and values become objects when they are asked for, and are not kept.
  #
  # It is what {PG::ResultSet} and {Mysql2::ResultSet} have in common.
  #
  # A decoder, a block or another thread may clear the table while it is being read. The method then returns all values,
  # or raises the ArgumentError of {#clear}.
  #
  # @!method get(row, column)
  #   @param row [Integer] from 0 on
  #   @param column [Integer, String, Symbol] its number or name
  #   @return [Object, nil] a new object for the value
  #   @raise [IndexError] where there is no such row or column
  # @!method null?(row, column)
  #   @return [Boolean] whether the value is nil, without making an object
  # @!method row_values(row)
  #   @return [Array] the values of a row
  # @!method each_row
  #   @yieldparam values [Array] of a row
  #   @return [self, Enumerator] the latter without a block
  # @!method column_values(column)
  #   @return [Array] the values of a column
  # @!method column_index(name)
  #   @return [Integer, nil] the number of the first column of this name
  # @!method column_name(column)
  #   @return [String]
  # @!method column_type(column)
  #   @return [Integer] what the server calls its type: the OID for PostgreSQL, 0 where it is not known
  # @!method column_encoding(column)
  #   @return [Encoding] of its strings
  # @!method row_count
  #   @return [Integer]
  # @!method column_count
  #   @return [Integer]
  # @!method bytesize
  #   @return [Integer] bytes of memory that it holds
  # @!method clear
  #   Frees the memory at once instead of with the next GC. What is asked for afterwards raises an ArgumentError.
  #   @return [nil]
  # @!method cleared?
  #   @return [Boolean]
  class Cells
    include Enumerable

    alias size row_count
    alias length row_count

    # @return [Row, nil] nil where there is no such row; negative numbers count from the end
    def [](index)
      index += row_count if index.negative?
      Row.new(self, index) if index.between?(0, row_count - 1)
    end

    # @return [Array<String>] names of the columns, in their order
    def columns
      Array.new(column_count) { |column| column_name(column) }
    end

    # @yieldparam row [Row]
    def each
      return to_enum(:each) { row_count } unless block_given?

      # The block may clear the table, so the number of rows is read again each time.
      index = -1
      yield Row.new(self, index) while (index += 1) < row_count
      self
    end

    # @return [Array<Array>] all values
    def values
      Array.new(row_count) { |index| row_values(index) }
    end

    # @return [Boolean]
    def empty?
      row_count.zero?
    end

    # @return [String]
    def inspect
      return "#<#{self.class} cleared>" if cleared?

      "#<#{self.class} #{row_count} rows of #{columns.join(', ')}, #{bytesize} bytes>"
    end
  end
end
