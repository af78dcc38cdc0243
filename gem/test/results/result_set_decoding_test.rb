# frozen_string_literal: true

require_relative "../test_helper"
require_relative "postgres"

# Values and names of a result set are those of the PG::Result: their classes and encodings, too.
class ResultSetDecodingTest < Minitest::Test
  include Postgres

  # Types with and without a decoder in PG::BasicTypeMapForResults.
  MIXED = "SELECT g AS id, 'näme ' || g AS name, g * 1.5 AS decimal, '1 day'::interval AS day, g % 2 = 0 AS even, " \
          "CASE WHEN g % 3 = 0 THEN NULL ELSE '\\x0041'::bytea END AS bytes FROM generate_series(1, $1::int) g"
  COLUMNS = 6

  # A type map that passes all values to its default map.
  class Passing < (defined?(PG::TypeMapInRuby) ? PG::TypeMapInRuby : Object)
    def fit_to_result(_result)
      self
    end
  end

  # A type map with a method that needs the result.
  class Needing < (defined?(PG::TypeMapInRuby) ? PG::TypeMapInRuby : Object)
    def typecast_result_value(result, row, column)
      "#{super} of #{result.ntuples}"
    end
  end

  # A decoder that is written in Ruby.
  class Shown < (defined?(PG::SimpleDecoder) ? PG::SimpleDecoder : Object)
    def decode(string, row, column)
      [string, string.encoding, row, column]
    end
  end

  # A decoder with an argument, so `dup` fails.
  class Marked < (defined?(PG::SimpleDecoder) ? PG::SimpleDecoder : Object)
    def initialize(mark)
      super()
      @mark = mark
    end

    def decode(string, _row, _column)
      [@mark, string, string.encoding]
    end
  end

  def mixed(rows, format = 0)
    @connection.exec_params(MIXED, [rows], format)
  end

  def integer
    PG::TextDecoder::Integer.new
  end

  def by_column(*coders, default: nil)
    map = PG::TypeMapByColumn.new(coders + ([nil] * (COLUMNS - coders.size)))
    map.default_type_map = default if default
    map
  end

  def by_oid(*coders, default: nil)
    map = PG::TypeMapByOid.new
    coders.each { |coder| map.add_coder(coder) }
    map.default_type_map = default if default
    map
  end

  def basic(default: nil)
    PG::BasicTypeMapForResults.new(@connection).tap { |map| map.default_type_map = default if default }
  end

  def boolean_by_oid(**default)
    by_oid(PG::TextDecoder::Boolean.new(oid: 16), **default)
  end

  # Maps of each kind, and maps with default maps of each kind.
  def maps
    {
      "none" => PG::TypeMapAllStrings.new,
      "by column" => by_column(integer, PG::TextDecoder::String.new, PG::TextDecoder::Float.new),
      "by OID" => boolean_by_oid,
      "basic" => basic,
      "in Ruby" => PG::TypeMapInRuby.new,
      "passing" => Passing.new,
      "by column, by OID" => by_column(integer, default: boolean_by_oid),
      "by column, basic" => by_column(integer, default: basic),
      "by column, by column, by OID" => by_column(integer, default: by_column(nil, Shown.new, default: boolean_by_oid)),
      "by column, in Ruby" => by_column(integer, default: PG::TypeMapInRuby.new),
      "by column, in Ruby, by OID" => by_column(integer, default: Passing.new.with_default_type_map(boolean_by_oid)),
      "by OID, by column" => boolean_by_oid(default: by_column(nil, nil, PG::TextDecoder::Float.new)),
      "by OID, by OID" => boolean_by_oid(default: by_oid(PG::TextDecoder::Integer.new(oid: 23))),
      "basic, by column" => basic(default: by_column(nil, nil, nil, Shown.new)),
      "in Ruby, by OID" => PG::TypeMapInRuby.new.with_default_type_map(boolean_by_oid),
      "all columns, needing" => by_column(*Array.new(COLUMNS) { Shown.new }, default: Needing.new)
    }
  end

  def described(values)
    values.map { |value| [value, value.class, value.is_a?(String) ? value.encoding : nil] }
  end

  # The names, and the values of each row.
  def all(rows, names)
    [described(names), *rows.map { |row| described(row) }]
  end

  # Compares all cells and names with those of the result.
  def assert_same_as_the_result(result, message)
    expected = all(result.values, result.fields)
    hashes = result.to_a
    set = result.result_set
    assert_equal(expected, all(set.values, set.columns), message)
    # `inspect` also compares the classes of keys and values.
    assert_equal([hashes, hashes.map(&:inspect)], [set.map(&:to_h), set.map { |row| row.to_h.inspect }], message)
    set
  end

  # Before pg 1.3, the GC frees the default map of a map in Ruby.
  def usable_maps
    Gem::Version.new(PG::VERSION) < Gem::Version.new("1.3") ? maps.reject { |name, _map| name =~ /in Ruby,/ } : maps
  end

  # A map by OID chooses by the number of rows whether it becomes a map by column.
  def test_values_are_those_of_the_result_with_each_kind_of_map
    usable_maps.each do |name, map|
      [1, 10, 11, 100].each do |rows|
        result = mixed(rows)
        result.type_map = map
        capture_io { assert_same_as_the_result(result, "#{name}, #{rows} rows") }
      end
    end
  end

  def test_values_in_binary_format_are_those_of_the_result
    coders = [PG::BinaryDecoder::Integer.new(format: 1), PG::BinaryDecoder::String.new(format: 1),
              Marked.new("x"), Shown.new(format: 1), PG::TextDecoder::String.new, PG::TextDecoder::Bytea.new]
    { "none" => PG::TypeMapAllStrings.new, "basic" => basic, "by column" => by_column(*coders),
      "by column, basic" => by_column(integer, default: basic) }.each do |name, map|
      [1, 100].each do |rows|
        result = mixed(rows, 1)
        result.type_map = name == "by column, basic" ? by_column(coders.first, default: basic) : map
        capture_io { assert_same_as_the_result(result, "#{name}, #{rows} rows") }
      end
    end
  end

  def test_maps_that_need_the_result_are_refused_and_the_result_lives
    [Needing.new, by_column(integer, default: Needing.new), boolean_by_oid(default: Needing.new),
     by_column(default: PG::TypeMapByOid.new.with_default_type_map(Needing.new))].each do |map|
      [1, 100].each do |rows|
        result = mixed(rows)
        result.type_map = map
        expected = contents(result)
        error = assert_raises(ArgumentError) { result.result_set }
        assert_match(/cannot use the type map ResultSetDecodingTest::Needing/, error.message)
        assert_whole expected, result
      end
    end
  end

  def test_maps_for_parameters_are_refused
    [PG::TypeMapByMriType.new, PG::TypeMapByClass.new].each do |default|
      result = mixed(1)
      result.type_map = by_column(integer)
      # pg checks a default map only when the map is set.
      result.type_map.default_type_map = default
      assert_raises(NotImplementedError) { result.getvalue(0, 1) }
      assert_match(/#{default.class}/, assert_raises(ArgumentError) { result.result_set }.message)
      assert_equal 1, result.getvalue(0, 0)
    end
  end

  def test_the_type_map_of_the_set_has_all_decoders
    map = by_column(integer)
    result = mixed(1)
    result.type_map = map
    assert_same map, result.result_set.type_map
    result = mixed(1)
    result.type_map = by_column(default: boolean_by_oid)
    set = result.result_set
    assert_kind_of PG::TypeMapByColumn, set.type_map
    assert_equal [nil, nil, nil, nil, PG::TextDecoder::Boolean, nil],
                 (set.type_map.coders.map { |coder| coder&.class })
    [by_column, PG::TypeMapInRuby.new, nil].each do |nothing|
      result = mixed(1)
      result.type_map = nothing if nothing
      assert_nil result.result_set.type_map
    end
  end

  def test_types_without_a_decoder_print_no_warning
    result = mixed(1)
    result.type_map = basic
    assert_silent { result.result_set.values }
  end

  def test_names_and_text_have_the_encoding_of_the_connection
    { "LATIN1" => "ISO-8859-1", "UTF8" => "UTF-8", "SJIS" => "Windows-31J", "EUC_JP" => "EUC-JP",
      "SQL_ASCII" => "ASCII-8BIT" }.each do |name, encoding|
      @connection.set_client_encoding(name)
      word = name =~ /JIS|JP/ ? "名" : "näme"
      word = encoding == "ASCII-8BIT" ? word.b : word.encode(encoding)
      # The source encoding of the query is that of the connection.
      sql = "SELECT '#{word}' AS \"#{word}\", 1 AS one".dup.force_encoding(word.encoding)
      [0, 1].each do |format|
        set = assert_same_as_the_result(@connection.exec_params(sql, [], format), name)
        assert_equal word, set.columns.first
        assert_equal set.get(0, 0), set.get(0, word)
      end
    end
  end

  def test_the_encoding_is_that_of_the_query
    result = @connection.exec('SELECT 1 AS "näme", U&\'n\00E4me\' AS word')
    @connection.set_client_encoding("LATIN1")
    other = connect.tap { |connection| connection.set_client_encoding("EUC_JP") }
    assert_same_as_the_result(other.exec("SELECT 1 AS one"), "EUC_JP")
    assert_equal ["näme"], assert_same_as_the_result(result, "UTF8").column_values("word")
  ensure
    other&.close
  end

  def test_names_are_symbols_if_those_of_the_result_are
    skip "this pg has no symbols as names" unless PG::Result.method_defined?(:field_name_type=)
    result = @connection.exec("SELECT 1 AS id, 2 AS \"näme\", 3 AS \"a b\"")
    result.field_name_type = :symbol
    set = assert_same_as_the_result(result, "symbols")
    assert_equal %i[id näme] + [:"a b"], set.columns
    row = set[0]
    assert_equal %w[1 1 2 2], [row[:id], row["id"], row[:näme], row["näme"]]
    assert_equal({ id: "1" }, row.deconstruct_keys(%i[id]))
    assert_equal :id, set.fname(0)
    assert_equal [[:id, "1"], [:näme, "2"], [:"a b", "3"]], row.each.to_a
    assert_match(/rows of id, näme, a b/, set.inspect)
    @connection.field_name_type = :symbol
    @connection.set_client_encoding("LATIN1")
    assert_same_as_the_result(@connection.exec("SELECT 1 AS id, 2 AS \"n\u00e4me\"".encode("ISO-8859-1")), "LATIN1")
    assert_same_as_the_result(@connection.exec("SELECT 1 AS id"), "ASCII")
    assert_equal [], @connection.exec("SELECT").result_set.columns
  end

  # The type of names cannot be changed after a method of the result has read all names.
  def test_a_result_that_is_refused_can_still_be_changed
    skip "this pg has no symbols as names" unless PG::Result.method_defined?(:field_name_type=)
    result = @connection.exec("SELECT 1 AS id").freeze
    assert_raises(FrozenError) { result.result_set }
    result = @connection.exec("SELECT 1 AS id")
    result.type_map = Needing.new
    assert_raises(ArgumentError) { result.result_set }
    result.field_name_type = :symbol
    assert_equal [:id], result.fields
  end

  def test_type_maps_decode_each_value_when_asked
    @connection.type_map_for_results = PG::BasicTypeMapForResults.new(@connection)
    expected = @connection.exec(ROWS).values
    assert_equal expected, result_set.values
    # A type map chooses by the number of rows whether it builds a map by column.
    few = @connection.exec("SELECT 1 AS a, true AS b, NULL AS c").result_set
    assert_equal [1, true, nil], few[0].values
    assert_kind_of PG::TypeMapByColumn, few.type_map
  end

  def test_a_map_that_needs_the_result_is_refused_and_the_result_lives
    result = @connection.exec(ROWS)
    result.type_map = Needing.new
    assert_raises(ArgumentError) { result.result_set }
    refute_predicate result, :cleared?
  end

  def test_bytes_and_encodings
    set = result_set("SELECT '\\x00ff00'::bytea AS raw", [], 1)
    assert_equal ["\x00\xFF\x00".b, Encoding::BINARY], [set.get(0, 0), set.column_encoding(0)]
    @connection.set_client_encoding("LATIN1")
    set = @connection.exec("SELECT 'n\u00e4me' AS name".encode("ISO-8859-1")).result_set
    assert_equal "näme".encode("ISO-8859-1"), set.get(0, 0)
  end
end
