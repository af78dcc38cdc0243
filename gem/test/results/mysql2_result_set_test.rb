# frozen_string_literal: true

require_relative "../test_helper"
require_relative "../../../testkit/ruby/servers"

begin
  require "rbloat/results/mysql2"
rescue LoadError
  nil
end

# Compact copies of results of MariaDB.
class Mysql2ResultSetTest < Minitest::Test
  def setup
    skip "ruby-mysql2 is not installed" unless defined?(Mysql2::Client)
    @client = Mysql2::Client.new(socket: Servers.mariadb["MYSQL_UNIX_PORT"], encoding: "utf8mb4")
  end

  def teardown
    @client&.close
  end

  def test_it_has_what_the_result_has
    sql = "SELECT 1 AS id, 'näme' AS name, NULL AS nothing, '' AS empty, x'00ff' AS raw UNION ALL " \
          "SELECT 2, 'other', 'x', 'y', x'01'"
    options = { cast: false, cache_rows: false }
    expected = @client.query(sql, as: :array, **options).to_a
    set = Rbloat::Mysql2ResultSet.new(@client.query(sql, **options))
    assert_equal expected, set.values
    assert_equal %w[id name nothing empty raw], set.columns
    assert_equal ["näme", nil, ""], [set[0]["name"], set[0][:nothing], set[0][3]]
    assert_equal expected.map { |row| row.map { |value| value&.encoding } },
                 set.values.map { |row| row.map { |value| value&.encoding } }
  end

  def test_a_result_that_was_read_is_refused
    result = @client.query("SELECT 1 AS id UNION SELECT 2")
    result.to_a
    assert_raises(TypeError, Mysql2::Error) { Rbloat::Mysql2ResultSet.new(result) }
  end

  def test_other_objects_than_results_are_refused
    assert_raises(TypeError) { Rbloat::Mysql2ResultSet.new(@client) }
    prepared = @client.prepare("SELECT 1 AS id").execute
    # Its protocol is binary: the values are no strings, and mysql2 warns that it decodes them.
    capture_io { assert_raises(TypeError) { Rbloat::Mysql2ResultSet.new(prepared) } }
  end

  def test_no_rows
    set = Rbloat::Mysql2ResultSet.new(@client.query("SELECT 1 AS a FROM (SELECT 1) t WHERE false"))
    assert_equal [0, %w[a], []], [set.size, set.columns, set.values]
  end

  def test_names_are_symbols_if_those_of_the_result_are
    result = @client.query("SELECT 1 AS id, 2 AS `näme`", symbolize_keys: true, cast: false, cache_rows: false)
    set = Rbloat::Mysql2ResultSet.new(result)
    assert_equal %i[id näme], set.columns
    assert_equal({ id: "1", näme: "2" }, set[0].to_h)
    assert_equal "2", set.get(0, "näme")
  end
end
