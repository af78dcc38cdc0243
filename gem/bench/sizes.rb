# frozen_string_literal: true

# Measures the bytes that a cell of a result set takes in addition to its text, in rows of 20 columns. Prints JSON: for
# each length of the text, the bytes in libpq's memory and after `shrink`. Environment variables name the server.

require "json"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require "rbloat/results/pg"

COLUMNS = 20
ROWS = 1_000
connection = PG.connect

sizes = [8, 50, 200, 700, 1_020, 2_000].map do |length|
  columns = Array.new(COLUMNS) { |column| "repeat('x', #{length}) AS c#{column}" }.join(", ")
  set = Rbloat::PGResultSet.new(connection.exec("SELECT #{columns} FROM generate_series(1, #{ROWS})"))
  [length, *%i[itself shrink].map { |way| (set.public_send(way).bytesize.fdiv(ROWS * COLUMNS) - length).round }]
end
puts JSON.generate(sizes)
