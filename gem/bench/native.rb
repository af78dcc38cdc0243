# frozen_string_literal: true

# usage: native.rb libpq|mysql2 nothing|pressure EXTENSION
#
# 10,000 results of 100,000 bytes which are not cleared, ten of them kept, beside 400,000 strings that are retained.
# Prints one line of JSON. The server is found by the environment.

require "json"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
library, way, extension = ARGV
require "rbloat"

RETAINED = Array.new(400_000) { |number| "string number #{number} of those that are retained" }
RECENT = Array.new(10)
RESULTS = 10_000

def clock
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

query =
  if library == "libpq"
    require extension
    -> { Unaccounted.query("SELECT repeat('x', 1000) FROM generate_series(1, 100)") }
  else
    require "mysql2"
    client = Mysql2::Client.new(socket: ENV.fetch("MYSQL_UNIX_PORT"))
    rows = "WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 100) " \
           "SELECT repeat('x', 1000) FROM ids"
    -> { client.query(rows) }
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
