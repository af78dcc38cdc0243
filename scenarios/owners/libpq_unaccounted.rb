# frozen_string_literal: true

# Results of PostgreSQL as in pg_results, held by an extension that tells Ruby nothing:
# testkit/ruby/libpq_unaccounted.c. It is compiled on first use.

require_relative "../../testkit/ruby/extension"
require_relative "../lib/owners"

TOTAL = 1_000
ROWS = "SELECT repeat('x', 1000) FROM generate_series(1, 100)"

require Extension.compile(*Extension::LIBPQ_UNACCOUNTED)

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { Unaccounted.query(ROWS) }
end
