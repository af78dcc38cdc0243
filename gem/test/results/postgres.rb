# frozen_string_literal: true

require_relative "../../../testkit/ruby/servers"

begin
  require "rbloat/results/pg/result"
rescue LoadError
  nil
end

# For tests with a connection to PostgreSQL.
module Postgres
  ROWS = <<~SQL
    SELECT g AS id, CASE WHEN g % 3 = 0 THEN NULL ELSE 'näme ' || g END AS name, '' AS empty, g * 1.5 AS "a b",
           g % 2 = 0 AS even
    FROM generate_series(1, 100) g
  SQL

  def setup
    skip "ruby-pg is not installed" unless defined?(PG::Connection)
    @connection = connect
  end

  def teardown
    @connection&.close
  end

  def connect
    variables = Servers.postgres
    PG.connect(host: variables["PGHOST"], port: variables["PGPORT"], user: variables["PGUSER"],
               dbname: variables["PGDATABASE"])
  end

  def result_set(sql = ROWS, *arguments)
    @connection.exec_params(sql, *(arguments.empty? ? [[]] : arguments)).result_set
  end

  # Fails unless the result has what it had when `expected` was made of it.
  def assert_whole(expected, result)
    refute_predicate result, :cleared?
    assert_equal expected, contents(result)
  end

  def contents(result)
    [result.values, result.type_map.object_id, result.ntuples, result.nfields, result.cmd_status,
     (0...result.nfields).map { |column| result.fname(column) }]
  end
end
