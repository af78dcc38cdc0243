# frozen_string_literal: true

module Rbloat
  # A row of a table. It has no values of its own but reads them from the table, which it keeps alive.
  class Row
    include Enumerable

    # @return [Integer] the number of the row, from 0
    attr_reader :index

    # @param cells [Cells]
    # @param index [Integer]
    def initialize(cells, index)
      @cells = cells
      @index = index
      freeze
    end

    # @param column [Integer, String, Symbol] number or name; negative numbers count from the end
    # @return [Object, nil] the value; nil if there is no such column
    def [](column)
      number = find(column)
      number && @cells.get(@index, number)
    end

    # @param column [Integer, String, Symbol]
    # @return [Object, nil] the value; without such a column, the result of the block or the default
    # @raise [KeyError, IndexError] if there is no such column, block or default
    def fetch(column, *default)
      number = find(column)
      return @cells.get(@index, number) if number
      return yield(column) if block_given?
      return default.first unless default.empty?

      error = column.is_a?(Integer) ? IndexError : KeyError
      raise error, "there is no column #{column.inspect}"
    end

    # Like Hash#dig.
    def dig(column, *further)
      value = self[column]
      further.empty? || value.nil? ? value : value.dig(*further)
    end

    # @return [Array<String>, Array<Symbol>] the names of the columns
    def keys
      @cells.columns
    end

    # @return [Boolean] true if there is a column with this name
    def key?(name)
      !@cells.column_index(name).nil?
    end
    alias has_key? key?

    # @return [Array]
    def values
      @cells.row_values(@index)
    end
    alias deconstruct values

    # @return [Hash{Symbol => Object}] the named columns, or all of them, for pattern matching
    def deconstruct_keys(names)
      (names || keys.map(&:to_sym)).select { |name| key?(name) }.to_h { |name| [name, self[name]] }
    end

    # @yieldparam name [String, Symbol]
    # @yieldparam value [Object, nil]
    def each
      return to_enum(:each) { size } unless block_given?

      size.times { |column| yield @cells.column_name(column), @cells.get(@index, column) }
      self
    end

    # @return [Hash{String, Symbol => Object}]
    def to_h(&block)
      hash = keys.zip(values).to_h
      block ? hash.to_h(&block) : hash
    end

    # @return [Integer] the number of columns
    def size
      @cells.column_count
    end
    alias length size

    # Rows are equal if their names and values are equal.
    def ==(other)
      other.is_a?(Row) && keys == other.keys && values == other.values
    end
    alias eql? ==

    # @return [Integer] equal for equal rows
    def hash
      [keys, values].hash
    end

    # @return [String]
    def inspect
      "#<#{self.class} #{map { |name, value| "#{name}: #{value.inspect}" }.join(', ')}>"
    end

    private

    def find(column)
      return @cells.column_index(column) unless column.is_a?(Integer)

      column += size if column.negative?
      column if column.between?(0, size - 1)
    end
  end
end
