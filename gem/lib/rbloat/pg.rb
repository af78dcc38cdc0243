# frozen_string_literal: true

require "pg"
require_relative "../rbloat"

module Rbloat
  # A compact copy of a PG::Result. The original is cleared, so its memory is freed at a known time. The GC knows the
  # size of the copy, and rows and values become objects only when they are read.
  #
  # The type map of the result decodes each value when it is read.
  class PGResultSet < Cells
    BINARY = 1
    # True if the extension knows the layout of a PG::Result of this pg.
    KNOWN = Gem::Requirement.new(">= 1.1", "< 2").satisfied_by?(Gem::Version.new(::PG::VERSION).release)
    private_constant :BINARY, :KNOWN

    # @param result [::PG::Result] is cleared
    # @raise [TypeError] if it is not a PG::Result, or has an unexpected layout in memory
    # @raise [::PG::Error] if the query failed
    # @raise [ArgumentError] if its type map can only decode a PG::Result, as PG::TypeMapInRuby does
    def initialize(result)
      raise TypeError, "wrong argument type #{result.class} (expected PG::Result)" unless result.is_a?(::PG::Result)

      super()
      result.check
      map = column_map(result)
      columns = (0...result.nfields).to_a
      native_columns(result.fields, encodings(result, columns), columns.map { |column| result.ftype(column) },
                     map && coders(map))
      native_keep(map)
      copy(result)
      result.clear
      freeze
    end

    # @return [::PG::TypeMapByColumn, nil] the type map that decodes values; nil if all values are strings
    def type_map
      decoders
    end

    alias ntuples row_count
    alias num_tuples row_count
    alias nfields column_count
    alias fields columns
    alias fname column_name
    alias fnumber column_index
    alias ftype column_type
    alias getvalue get
    alias getisnull null?
    alias field_values column_values

    private

    # Maps that choose a decoder by the type of a column choose once for all columns.
    def column_map(result)
      map = result.type_map
      case map
      when ::PG::TypeMapAllStrings then nil
      when ::PG::TypeMapByColumn then map
      else
        unless map.respond_to?(:build_column_map)
          raise ArgumentError, "cannot use the type map #{map.class}: it can only decode a PG::Result " \
                               "(set another type map, or none, before creating a result set)"
        end
        map.build_column_map(result)
      end
    end

    # A column without a coder uses the default map.
    def coders(map)
      default = map.respond_to?(:default_type_map) ? map.default_type_map : nil
      others = default.is_a?(::PG::TypeMapByColumn) ? coders(default) : []
      map.coders.each_with_index.map { |coder, column| coder || others[column] }
    end

    # Names of columns have the encoding of the connection, as all text has.
    def encodings(result, columns)
      text = columns.empty? ? Encoding::UTF_8 : result.fname(0).encoding
      columns.map { |column| result.fformat(column) == BINARY ? Encoding::BINARY : text }
    end

    def copy(result)
      return if KNOWN && native_copy(result, result.ntuples) && same_corners?(result)

      strings = Array.new(result.ntuples) { |row| as_strings(result, row) }
      native_rows(strings)
    end

    # Compares four cells with the values that pg returns, since the copy was made without pg.
    def same_corners?(result)
      return true if empty? || column_count.zero?

      strings = ::PG::TypeMapAllStrings.new
      map = result.type_map
      result.type_map = strings
      [0, row_count - 1].product([0, column_count - 1]).all? do |row, column|
        raw(row, column) == result.getvalue(row, column)
      end || raise(Error, "pg #{::PG::VERSION} and libpq disagree on a result; please report this")
    ensure
      result.type_map = map if map
    end

    def as_strings(result, row)
      map = result.type_map
      result.type_map = ::PG::TypeMapAllStrings.new
      Array.new(result.nfields) { |column| result.getvalue(row, column) }
    ensure
      result.type_map = map
    end
  end
end
