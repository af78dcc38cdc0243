# frozen_string_literal: true

require "pg"

require_relative "../../../gem/test/servers"

# The shop's own PostgreSQL, with its orders; it ends with the process that started it.
module Database
  SEEDS = File.expand_path("../db/shop.sql", __dir__)

  # The environment's variables by which the shop finds it, started by the first call.
  def self.start
    @start ||= seed(Servers.postgres)
  end

  def self.seed(variables)
    host, port, user, name = variables.values_at("PGHOST", "PGPORT", "PGUSER", "PGDATABASE")
    connection = PG.connect(host: host, port: port, user: user, dbname: name)
    connection.exec("SET client_min_messages = warning")
    connection.exec(File.read(SEEDS))
    connection.close
    variables
  end
  private_class_method :seed
end
