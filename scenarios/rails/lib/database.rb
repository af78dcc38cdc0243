# frozen_string_literal: true

require "pg"

require_relative "../../../gem/test/servers"

# The shop's own PostgreSQL, with its orders; it ends with the process that started it.
module Database
  SEEDS = File.expand_path("../db/shop.sql", __dir__)

  # The environment's variables by which the shop finds it.
  def self.start
    variables = Servers.postgres
    where = { host: variables["PGHOST"], port: variables["PGPORT"], user: variables["PGUSER"], dbname: variables["PGDATABASE"] }
    connection = PG.connect(where)
    connection.exec("SET client_min_messages = warning")
    connection.exec(File.read(SEEDS))
    connection.close
    variables
  end
end
