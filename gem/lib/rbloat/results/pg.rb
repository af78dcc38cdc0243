# frozen_string_literal: true

require "pg"
require_relative "../results"

module Rbloat
  # The rows of a PG::Result in one object, plus its type map. The set takes over the memory of the result: `clear`
  # frees it at once, otherwise the GC does. The GC knows its size. Rows and values become objects only when they are
  # read.
  #
  # The result is cleared: its methods raise a PG::Error, and so do its PG::Tuples that were not read before. So read
  # `cmd_tuples`, `ftable` and the like before.
  #
  # The type map of the result decodes each value when it is read. The names of the set are Symbols if the
  # `field_name_type` of the result is `:symbol`.
  class PGResultSet < Cells
    BINARY = 1
    # Statuses of results that have the data of a COPY instead of rows.
    COPIES = [::PG::PGRES_COPY_IN, ::PG::PGRES_COPY_OUT, ::PG::PGRES_COPY_BOTH].freeze
    # True if the extension knows the layout of a PG::Result of this pg.
    KNOWN = Gem::Requirement.new(">= 1.1", "< 2").satisfied_by?(Gem::Version.new(::PG::VERSION).release)
    private_constant :BINARY, :COPIES, :KNOWN

    # If an exception ends this method, the result is either as it was before or cleared.
    #
    # @param result [::PG::Result] is cleared
    # @raise [TypeError] if it is not a PG::Result, or has an unexpected layout in memory
    # @raise [::PG::Error] if the query failed, or the result was cleared already
    # @raise [ArgumentError] if it is the result of a COPY, or if its type map can only decode a PG::Result, as a
    #   PG::TypeMapInRuby with methods of its own does
    def initialize(result)
      raise TypeError, "wrong argument type #{result.class} (expected PG::Result)" unless result.is_a?(::PG::Result)

      super()
      check(result)
      columns = (0...result.nfields).to_a
      map = column_map(result)
      coders = map&.coders
      native_columns(columns.map { |column| result.fname(column) }, encodings(result, columns, coders || []),
                     columns.map { |column| result.ftype(column) }, coders)
      native_keep(map)
      take(result)
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

    def check(result)
      raise ::PG::Error, "the result has been cleared, or taken over by another result set" if result.cleared?

      result.check
      return unless COPIES.include?(result.result_status)

      raise ArgumentError, "the result of a COPY has no rows (read its data with PG::Connection#get_copy_data)"
    end

    # A map with one decoder for each column, which needs no default map; nil if no column has a decoder.
    def column_map(result)
      map = result.type_map
      coders = coders(map, result)
      return if coders.none?

      map.is_a?(::PG::TypeMapByColumn) && coders == map.coders ? map : ::PG::TypeMapByColumn.new(coders)
    end

    # The decoder of each column, or nil if its values are strings. A map passes columns without a decoder to its
    # default map.
    def coders(map, result)
      return Array.new(result.nfields) if map.is_a?(::PG::TypeMapAllStrings)

      own = own_coders(map, result)
      return own if own.all?

      own.zip(coders(map.default_type_map, result)).map { |coder, other| coder || other }
    end

    def own_coders(map, result)
      case map
      when ::PG::TypeMapByColumn then in_format(map.coders, result)
      when ::PG::TypeMapByOid then map.build_column_map(result).coders
      else
        passes_all?(map) or
          raise ArgumentError, "cannot use the type map #{map.class}: it can only decode a PG::Result " \
                               "(set another type map, or none, before creating a result set)"
        Array.new(result.nfields)
      end
    end

    # PG::BasicTypeMapForResults has a map of this kind, which only prints warnings.
    def passes_all?(map)
      map.is_a?(::PG::BasicTypeMapForResults::WarningTypeMap) ||
        (map.is_a?(::PG::TypeMapInRuby) && map.method(:typecast_result_value).owner == ::PG::TypeMapInRuby)
    end

    # A result passes values to pg's own decoders in any format, but their `decode` accepts zero bytes only in binary
    # format.
    def in_format(coders, result)
      coders.each_with_index.map do |coder, column|
        format = result.fformat(column)
        own?(coder) && coder.format != format ? coder.dup.tap { |copy| copy.format = format } : coder
      end
    end

    # True for the decoders of pg itself, which are written in C.
    def own?(coder)
      !coder.nil? && coder.class.const_defined?(:CFUNC)
    end

    # Text has the encoding of the connection, and so have the strings that pg's own decoders make of binary values.
    # Other binary values have none.
    def encodings(result, columns, coders)
      text = result.cmd_status.encoding
      columns.zip(coders).map do |column, coder|
        result.fformat(column) == BINARY && !own?(coder) ? Encoding::BINARY : text
      end
    end

    # Takes over the memory of the result. If libpq owns it, as in a notice receiver, or if this pg is unknown, the
    # cells are copied.
    def take(result)
      rows = result.ntuples
      samples = samples_of(result)
      return if KNOWN && (result.autoclear? ? native_copy(result, rows, samples) : native_take(result, rows, samples))

      strings = strings_of(result, 0...rows, 0...result.nfields)
      check(result)
      native_rows(strings)
    end

    # The cells in the corners, with which the extension checks that it reads what pg reads.
    def samples_of(result)
      rows = result.ntuples
      columns = result.nfields
      return [] if rows.zero? || columns.zero?

      corners = [[0, rows - 1].uniq, [0, columns - 1].uniq]
      corners.first.product(corners.last).zip(strings_of(result, *corners).flatten).map(&:flatten)
    end

    # Cells as strings. This map decodes nothing, and a result need not be changed to use it.
    def strings_of(result, rows, columns)
      map = ::PG::TypeMapInRuby.new
      rows.map { |row| columns.map { |column| map.typecast_result_value(result, row, column) } }
    end
  end
end
