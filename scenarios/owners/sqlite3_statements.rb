# frozen_string_literal: true

# Prepared statements that were never closed. Each points to its database, and the database points to each of them.

require "sqlite3"
require_relative "../lib/owners"

TOTAL = 5_000

Owners.run do |scale|
  database = SQLite3::Database.new(":memory:")
  database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, total INTEGER)")
  query = "SELECT name, sum(total) FROM orders WHERE id > ? AND name LIKE ? GROUP BY name ORDER BY 2"
  # The gem does not finalize a statement that the GC collects: its memory stays with the database.
  Owners.keep(TOTAL * scale, shared_with: ["SQLite3::Database"], free: :close.to_proc) { database.prepare(query) }
end
