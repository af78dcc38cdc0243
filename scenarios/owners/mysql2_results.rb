# frozen_string_literal: true

# Results of MariaDB that are never read to the end. mysql2 does not tell Ruby what the client library holds for them.
# MYSQL_UNIX_PORT is the server's socket.

require "mysql2"
require_relative "../lib/owners"

TOTAL = 1_000
ROWS = "WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 100) " \
       "SELECT repeat('x', 1000) FROM ids"

Owners.run do |scale|
  client = Mysql2::Client.new(socket: ENV.fetch("MYSQL_UNIX_PORT"))
  Owners.keep(TOTAL * scale) { client.query(ROWS) }
end
