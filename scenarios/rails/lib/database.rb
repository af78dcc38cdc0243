# frozen_string_literal: true

require "pg"

require_relative "../../../testkit/ruby/servers"

# A PostgreSQL server with the shop's orders. It ends with the process that started it.
module Database
  SEEDS = File.expand_path("../db/shop.sql", __dir__)

  # Returns the environment variables by which the shop finds the server. The first call starts the server.
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
