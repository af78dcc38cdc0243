# frozen_string_literal: true

module Rbloat
  # An immutable table of strings in one Ruby object. The cells are in one block of memory, or in the result of the
  # database library. The GC knows their size. Rows and values become objects when they are read, and are not cached.
  #
  # {PGResultSet} and {Mysql2ResultSet} are tables of this kind.
  #
  # A decoder, a block or another thread may clear the table while a method reads it. The method then returns all
  # values, or raises the ArgumentError of {#clear}.
  #
  # @!method get(row, column)
  #   @param row [Integer] the number of the row, from 0
  #   @param column [Integer, String, Symbol] the number or name of the column
  #   @return [Object, nil] the value, as a new object
  #   @raise [IndexError] if there is no such row or column
  # @!method null?(row, column)
  #   @return [Boolean] true if the value is nil; creates no object
  # @!method row_values(row)
  #   @return [Array] the values of a row
  # @!method each_row
  #   @yieldparam values [Array] the values of a row
  #   @return [self, Enumerator] an Enumerator if there is no block
  # @!method column_values(column)
  #   @return [Array] the values of a column
  # @!method column_index(name)
  #   @return [Integer, nil] the number of the first column with this name
  # @!method column_name(column)
  #   @return [String, Symbol] a Symbol if the result of the database library has Symbols as names
  # @!method column_type(column)
  #   @return [Integer] the server's number for the type: the OID for PostgreSQL, 0 if unknown
  # @!method column_encoding(column)
  #   @return [Encoding] the encoding of the column's strings
  # @!method row_count
  #   @return [Integer]
  # @!method column_count
  #   @return [Integer]
  # @!method bytesize
  #   @return [Integer] the bytes of memory that the table uses
  # @!method shrink
  #   Copies the cells into one block of memory, if they are in the result of the database library, and frees that. In
  #   the block a cell takes 4 bytes more than its text. A copy of 10 MiB takes some milliseconds, in which no other
  #   thread of Ruby runs.
  #   @return [self]
  # @!method clear
  #   Frees the memory now instead of at the next GC. Later reads raise an ArgumentError.
  #   @return [nil]
  # @!method cleared?
  #   @return [Boolean]
  class Cells
    include Enumerable

    alias size row_count
    alias length row_count

    # @return [Row, nil] nil if there is no such row; negative numbers count from the end
    def [](index)
      index += row_count if index.negative?
      Row.new(self, index) if index.between?(0, row_count - 1)
    end

    # @return [Array<String>, Array<Symbol>] the names of the columns, in order
    def columns
      Array.new(column_count) { |column| column_name(column) }
    end

    # @yieldparam row [Row]
    def each
      return to_enum(:each) { row_count } unless block_given?

      # The block may clear the table.
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

      "#<#{self.class} #{row_count} rows of #{columns.join(', ')}, #{Units.binary(bytesize)}>"
    end
  end
end
