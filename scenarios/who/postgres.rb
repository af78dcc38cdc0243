# frozen_string_literal: true

# Results of PostgreSQL, which libpq keeps in memory of its own, and strings of Ruby that are copied from them. libpq finds the
# server by PGHOST (the folder of its socket), PGUSER and PGDATABASE. The function that waits for a result runs without the GVL.

# Its library is a gem, and tests start scenarios without RubyGems.
require "rubygems"
require "pg"
require_relative "truth"

ROUNDS = 12
KEPT = []

def result(connection)
  KEPT << connection.exec("SELECT repeat('r', 400) FROM generate_series(1, 8000)")
end

def strings(connection)
  connection.exec("SELECT repeat('s', 1000) FROM generate_series(1, 200)") do |found|
    10.times { KEPT << found.column_values(0) }
  end
end

Truth.run do
  threads = %i[result strings].map do |name|
    Thread.new do
      connection = PG.connect
      ROUNDS.times do
        Truth.of("Object##{name}") { send(name, connection) }
        sleep 0.01
      end
    end
  end
  threads.each(&:join)
end
