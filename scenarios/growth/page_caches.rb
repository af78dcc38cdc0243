# frozen_string_literal: true

# No leak: a pool of connections to an SQLite database. Each keeps the pages that it reads, up to 2 MB of them, and each step reads
# others.

require "sqlite3"
require "tempfile"
require_relative "../lib/scenario"

ROWS = 50_000
CONNECTIONS = 8
# A page has about ten rows.
READS = 100
RANDOM = Random.new(1)

def step
  POOL.each { |database| READS.times { database.execute("select body from posts where id = ?", [RANDOM.rand(ROWS)]) } }
  GC.start
  { objects: POOL.size }
end

Scenario.run(commands: { "step" => method(:step) }) do
  file = Tempfile.create("rbloat")
  database = SQLite3::Database.new(file.path)
  database.execute("create table posts(id integer primary key, body text)")
  database.transaction { ROWS.times { |id| database.execute("insert into posts values(?, ?)", [id, "body " * 80]) } }
  database.close
  POOL = Array.new(CONNECTIONS) { SQLite3::Database.new(file.path) }
  File.unlink(file.path)
  { sqlite_version: SQLite3::VERSION }
end
