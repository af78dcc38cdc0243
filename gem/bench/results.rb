# frozen_string_literal: true

# usage: results.rb values|to_a|tuple|getvalue|result_set|shrink|strings|mysql2_to_a|mysql2_result_set
#
# Reads a result of 10,000 rows of 20 text columns in one way: all cells, and 1 % of them. Prints one line of JSON:
# milliseconds from the PG::Result or the Mysql2::Result on, retained objects, and the growth of RSS. Environment
# variables name the server.

require "json"
require "objspace"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require "rbloat"
require "rbloat/results/#{ARGV[0].start_with?('mysql2') ? 'mysql2' : 'pg'}"
require_relative "../../testkit/ruby/extension"
require_relative "../../testkit/ruby/statistics"
require Extension.compile(File.join(__dir__, "strings.c"))

ROWS = 10_000
COLUMNS = 20
# 49.5 bytes in a cell on average, 9.4 MiB in all. The text is that of PostgreSQL or MariaDB.
def sql(rows, text, table)
  cells = Array.new(COLUMNS) { |column| "rpad(#{format(text, column + 1)}, 49 + mod(g, 2), 'x') AS c#{column}" }
  "SELECT #{cells.join(', ')} FROM #{format(table, rows)}"
end

def postgres
  connection = PG.connect
  ->(rows) { connection.exec(sql(rows, "(g * %d)::text", "generate_series(1, %d) g")) }
end

def mariadb
  client = Mysql2::Client.new(socket: ENV.fetch("MYSQL_UNIX_PORT"))
  client.query("SET max_recursive_iterations = 1000000")
  numbers = "(WITH RECURSIVE n(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM n WHERE g < %d) SELECT g FROM n) numbers"
  ->(rows) { client.query(sql(rows, "g * %d", numbers), cast: false, cache_rows: false, as: :array) }
end

SOME = (0...ROWS * COLUMNS).step(100).map { |cell| cell.divmod(COLUMNS) }.freeze
ROUNDS = 7

# CPU time of the thread, including the kernel's for page faults. One thread does everything, and never waits.
def clock
  Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
end

# For each way: creates what it keeps of a result, reads one cell of that, and reads all cells as fast as it can.
WAYS = {
  "values" => [
    ->(result) { result.values.tap { result.clear } }, ->(kept, row, column) { kept[row][column] },
    ->(kept) { kept.each { |row| row.each(&:itself) } }
  ],
  "to_a" => [
    ->(result) { result.to_a.tap { result.clear } }, ->(kept, row, column) { kept[row]["c#{column}"] },
    ->(kept) { kept.each { |row| row.each_value(&:itself) } }
  ],
  "tuple" => [
    ->(result) { Array.new(ROWS) { |row| result.tuple(row) } }, ->(kept, row, column) { kept[row][column] },
    ->(kept) { kept.each { |row| row.each_value(&:itself) } }
  ],
  "getvalue" => [
    ->(result) { result }, ->(kept, row, column) { kept.getvalue(row, column) },
    ->(kept) { ROWS.times { |row| COLUMNS.times { |column| kept.getvalue(row, column) } } }
  ],
  "result_set" => [
    ->(result) { Rbloat::PGResultSet.new(result) }, ->(kept, row, column) { kept.get(row, column) },
    ->(kept) { kept.each_row { |row| row.each(&:itself) } }
  ],
  "shrink" => [
    ->(result) { Rbloat::PGResultSet.new(result).shrink }, ->(kept, row, column) { kept.get(row, column) },
    ->(kept) { kept.each_row { |row| row.each(&:itself) } }
  ],
  "mysql2_to_a" => [
    ->(result) { result.to_a.tap { result.free } }, ->(kept, row, column) { kept[row][column] },
    ->(kept) { kept.each { |row| row.each(&:itself) } }
  ],
  "mysql2_result_set" => [
    ->(result) { Rbloat::Mysql2ResultSet.new(result) }, ->(kept, row, column) { kept.get(row, column) },
    ->(kept) { kept.each_row { |row| row.each(&:itself) } }
  ],
  # Only creates the strings, without a result.
  "strings" => [
    ->(_result) {}, ->(_kept, _row, _column) {},
    ->(_kept) { Strings.each_row(ROWS, COLUMNS) { |row| row.each(&:itself) } }
  ]
}.freeze

keep, read, read_all = WAYS.fetch(ARGV.fetch(0))
query = ARGV[0].start_with?("mysql2") ? mariadb : postgres

measure = lambda do |&block|
  samples = Array.new(ROUNDS) do
    result = query.call(ROWS)
    GC.start
    started = clock
    block.call(result)
    (clock - started) * 1000
  end
  Statistics.median(samples)
end

# The memory is measured first, before other rounds leave garbage.
query.call(10).then { |few| keep.call(few) } unless ARGV[0] == "tuple"
3.times { GC.start }
Rbloat.trim
before = Rbloat.rss_bytes
objects = ObjectSpace.count_objects.then { |counts| counts[:TOTAL] - counts[:FREE] }
kept = keep.call(query.call(ROWS))
read_all.call(kept) if ARGV[0] == "tuple"
3.times { GC.start }
# Values that were strings for a moment have left free memory.
Rbloat.trim
after = Rbloat.rss_bytes
made = ObjectSpace.count_objects.then { |counts| counts[:TOTAL] - counts[:FREE] } - objects
kept = nil

making = measure.call { |result| keep.call(result) }
some = measure.call do |result|
  all = keep.call(result)
  SOME.each { |row, column| read.call(all, row, column) }
end
every = measure.call { |result| read_all.call(keep.call(result)) }
puts JSON.generate(making: making, some: some, every: every, objects: made, resident: after - before, kept: kept)
