# frozen_string_literal: true

# usage: results.rb values|to_a|tuple|getvalue|result_set|strings
#
# Reads a result of 10,000 rows of 20 text columns in one way, all cells and one in a hundred. Prints one line of JSON:
# milliseconds from the PG::Result on, objects that are kept, and by how much RSS rose. The server is found by the
# environment.

require "json"
require "objspace"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require "rbloat/pg"
require_relative "../test/servers"
require Servers.extension(File.join(__dir__, "strings.c"))

ROWS = 10_000
COLUMNS = 20
# 49.5 bytes in a cell on average, 9.9 MB in all.
SQL = "SELECT #{Array.new(COLUMNS) { |c| "rpad((g * #{c + 1})::text, 49 + mod(g, 2), 'x') AS c#{c}" }.join(', ')} " \
      "FROM generate_series(1, %d) g"
SOME = (0...ROWS * COLUMNS).step(100).map { |cell| cell.divmod(COLUMNS) }.freeze
ROUNDS = 7

# The thread's own, the kernel's part for page faults included: all is done by one thread, and nothing waits.
def clock
  Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
end

# Each way: what it keeps of a result, how it reads a cell of that, and how all cells in the way that suits it best.
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
    ->(result) { Rbloat::PG::ResultSet.new(result) }, ->(kept, row, column) { kept.get(row, column) },
    ->(kept) { kept.each_row { |row| row.each(&:itself) } }
  ],
  # Of no result: what Ruby itself needs for as many.
  "strings" => [
    ->(_result) {}, ->(_kept, _row, _column) {},
    ->(_kept) { Strings.each_row(ROWS, COLUMNS) { |row| row.each(&:itself) } }
  ]
}.freeze

keep, read, read_all = WAYS.fetch(ARGV.fetch(0))
connection = PG.connect

measure = lambda do |&block|
  samples = Array.new(ROUNDS) do
    result = connection.exec(format(SQL, ROWS))
    GC.start
    started = clock
    block.call(result)
    (clock - started) * 1000
  end
  samples.sort[ROUNDS / 2]
end

# In a fiber, so that its stack names nothing afterwards. The first round of all is that of the memory.
connection.exec(format(SQL, 10)).then { |few| keep.call(few) } unless ARGV[0] == "tuple"
3.times { GC.start }
Rbloat.trim
before = Rbloat.rss_bytes
objects = ObjectSpace.count_objects.then { |counts| counts[:TOTAL] - counts[:FREE] }
kept = keep.call(connection.exec(format(SQL, ROWS)))
read_all.call(kept) if ARGV[0] == "tuple"
3.times { GC.start }
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
