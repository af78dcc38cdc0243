# frozen_string_literal: true

# Results of PostgreSQL that are never cleared. pg tells Ruby what libpq holds for them. libpq finds the server by
# PGHOST (the folder of its socket), PGUSER and PGDATABASE.

require "pg"
require_relative "../lib/owners"

TOTAL = 1_000
ROWS = "SELECT repeat('x', 1000) FROM generate_series(1, 100)"

Owners.run do |scale|
  connection = PG.connect
  Owners.keep(TOTAL * scale) { connection.exec(ROWS) }
end
