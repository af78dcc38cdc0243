# frozen_string_literal: true

# Databases in memory. Ruby counts only their slots.

require "sqlite3"
require_relative "../lib/owners"

TOTAL = 200
ORDERS = 200

Owners.run do |scale|
  Owners.keep(TOTAL * scale) do
    database = SQLite3::Database.new(":memory:")
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    database.execute("WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < #{ORDERS}) " \
                     "INSERT INTO orders SELECT id, hex(zeroblob(250)) FROM ids")
    database
  end
end
