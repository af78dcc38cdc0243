# frozen_string_literal: true

require "pg"
require_relative "../rbloat"

module Rbloat
  # The rows of a PG::Result in a single object. The set takes over the memory of the result, which is cleared, and
  # frees it at a known time. The GC knows its size, and rows and values become objects only when they are read.
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

    # Takes over the memory of the result. If libpq owns it, as in a notice receiver, or if this pg is unknown, the
    # cells are copied.
    def take(result)
      rows = result.ntuples
      corners = corners_of(result)
      if KNOWN && (result.autoclear? ? native_copy(result, rows) : native_take(result, rows))
        compare(corners)
      else
        native_rows(Array.new(rows) { |row| as_strings(result, row) })
      end
    end

    # Four cells, to be compared afterwards, since the extension reads the result without pg.
    def corners_of(result)
      return [] if result.ntuples.zero? || result.nfields.zero?

      [0, result.ntuples - 1].uniq.map { |row| [row, as_strings(result, row).values_at(0, -1)] }
    end

    def compare(corners)
      last = column_count - 1
      corners.each do |row, strings|
        read = [raw(row, 0), raw(row, last)]
        raise Error, "pg #{::PG::VERSION} and libpq disagree on a result; please report this" if read != strings
      end
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
