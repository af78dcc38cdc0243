# frozen_string_literal: true

require "pg"
require_relative "../rbloat"

module Rbloat
  # For the gem pg.
  module PG
    # A compact copy of a PG::Result, which is cleared: its memory is freed at a known time, the GC knows of that of the
    # copy, and there are no objects for rows and values until they are asked for.
    #
    # The type map of the result decodes each value when it is asked for.
    class ResultSet < Cells
      BINARY = 1
      # True if the extension knows how this version of pg lays out a PG::Result.
      KNOWN = Gem::Requirement.new(">= 1.1", "< 2").satisfied_by?(Gem::Version.new(::PG::VERSION).release)
      private_constant :BINARY, :KNOWN

      # @param result [::PG::Result] is cleared
      # @raise [TypeError] if it is not a PG::Result, or not laid out in memory as expected of this version of pg
      # @raise [::PG::Error] where the result is that of an error
      # @raise [ArgumentError] where its type map needs the PG::Result itself to decode, as PG::TypeMapInRuby does
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

      # @return [::PG::TypeMapByColumn, nil] what decodes; nil where values are strings
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

      # Maps that choose a decoder by the type of a column are asked once for all columns.
      def column_map(result)
        map = result.type_map
        case map
        when ::PG::TypeMapAllStrings then nil
        when ::PG::TypeMapByColumn then map
        else
          unless map.respond_to?(:build_column_map)
            raise ArgumentError, "a #{map.class} decodes nothing but a PG::Result: " \
                                 "set another type map, or none, before making a result set"
          end
          map.build_column_map(result)
        end
      end

      # Where a column map has none it asks its default.
      def coders(map)
        default = map.respond_to?(:default_type_map) ? map.default_type_map : nil
        others = default.is_a?(::PG::TypeMapByColumn) ? coders(default) : []
        map.coders.each_with_index.map { |coder, column| coder || others[column] }
      end

      # Names have the encoding of the connection, as all text has.
      def encodings(result, columns)
        text = columns.empty? ? Encoding::UTF_8 : result.fname(0).encoding
        columns.map { |column| result.fformat(column) == BINARY ? Encoding::BINARY : text }
      end

      def copy(result)
        return if KNOWN && native_copy(result, result.ntuples) && same_corners?(result)

        strings = Array.new(result.ntuples) { |row| as_strings(result, row) }
        native_rows(strings)
      end

      # What was copied past the gem pg is what it says, at least in the corners.
      def same_corners?(result)
        return true if empty? || column_count.zero?

        strings = ::PG::TypeMapAllStrings.new
        map = result.type_map
        result.type_map = strings
        [0, row_count - 1].product([0, column_count - 1]).all? do |row, column|
          raw(row, column) == result.getvalue(row, column)
        end || raise(NotImplementedError, "pg #{::PG::VERSION} and libpq do not agree on a result; please report this")
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
end
