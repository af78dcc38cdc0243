# frozen_string_literal: true

# usage: native.rb libpq|pg|mysql2|mysql2-prepared nothing|pressure|probe
#
# Makes 10,000 results of 100,000 bytes that are not cleared, and keeps the last ten. 400,000 strings are retained.
# Prints one line of JSON and waits until its standard input ends. With `probe`, only measures one result. Environment
# variables name the server. The gem is always loaded, so its own variables apply as well.

require "json"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
library, way = ARGV
require "rbloat"
require_relative "figures"

RETAINED = Array.new(400_000) { |number| "string number #{number} of those that are retained" }
RECENT = Array.new(10)
RESULTS = 10_000

POSTGRES_ROWS = "SELECT repeat('x', 1000) FROM generate_series(1, 100)"
MARIADB_ROWS = "WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 100) " \
               "SELECT repeat('x', 1000) FROM ids"

def mariadb
  require "mysql2"
  Mysql2::Client.new(socket: ENV.fetch("MYSQL_UNIX_PORT"))
end

query =
  case library
  when "libpq"
    require_relative "../../testkit/ruby/extension"
    require Extension.compile(*Extension::LIBPQ_UNACCOUNTED)
    -> { Unaccounted.query(POSTGRES_ROWS) }
  when "pg"
    require "pg"
    connection = PG.connect
    -> { connection.exec(POSTGRES_ROWS) }
  when "mysql2"
    client = mariadb
    -> { client.query(MARIADB_ROWS) }
  when "mysql2-prepared"
    statement = mariadb.prepare(MARIADB_ROWS)
    -> { statement.execute }
  end

if way == "probe"
  query.call
  probed = Rbloat.probe { query.call }
  puts JSON.generate(malloc: probed.malloc_bytes, told: probed.told_bytes)
  exit
end

Rbloat::NativePressure.start if way == "pressure"
query.call
3.times { GC.start }
before = GC.count
most = 0
started = clock
RESULTS.times do |index|
  RECENT[index % 10] = query.call
  most = [most, Rbloat.rss_bytes].max if index % 100 == 99
end
seconds = clock - started
times = Process.times
puts JSON.generate(seconds: seconds, cpu: times.utime + times.stime, rss: Rbloat.rss_bytes, most: most,
                   collections: GC.count - before)
$stdout.flush
$stdin.read
