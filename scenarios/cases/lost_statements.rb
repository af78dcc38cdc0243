# frozen_string_literal: true

# Prepared statements that nobody closes: SQLite lists them in their database, so it has their memory when they are garbage, too.
# (sparklemotion/sqlite3-ruby#392: up to 1.6, the objects free nothing but their own structure.)

# Its library is a gem, and tests start scenarios without RubyGems.
require "rubygems"
require "sqlite3"
require_relative "../lib/scenario"

# The columns of a table, and the query for all of them.
COLUMNS = Array.new(30) { |index| "c#{index}" }.freeze
QUERY = "select #{COLUMNS.join(",")} from t where #{COLUMNS.map { |name| "#{name} = 'v'" }.join(" and ")}"
DATABASE = SQLite3::Database.new(":memory:")
DATABASE.execute("create table t (#{COLUMNS.map { |name| "#{name} text" }.join(",")})")

Scenario.run do |scale|
  lost = (4000 * scale).ceil
  lost.times { DATABASE.prepare(QUERY) }
  GC.start
  # These are garbage, too, and the GC has not run since.
  GC.disable
  100.times { DATABASE.prepare(QUERY) }
  { lost: lost, sqlite_version: SQLite3::VERSION }
end
