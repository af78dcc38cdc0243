# frozen_string_literal: true

# Work of a fixed amount, by two threads: JSON, sorting, formatting and garbage. It grows by some 20 MB in a second. Prints the time
# that it took, and the processors' time.
#   usage: mixed.rb [ROUNDS]

require "json"

ROUNDS = Integer(ARGV.fetch(0, "300"))
# Of so many results one is kept; the others become garbage.
KEPT_EVERY = 5

def work(round)
  rows = Array.new(1500) { |i| { "id" => i, "name" => "customer #{i}", "total" => i * 1.25 } }
  text = JSON.generate(rows)
  names = JSON.parse(text).map { |row| format("%-20s %8.2f", row["name"], row["total"]) }
  [text, names.sort.first(round % 50)]
end

def clock(name)
  Process.clock_gettime(name)
end

puts "ready {}"
$stdout.flush
$stdin.gets
clocks = [Process::CLOCK_MONOTONIC, Process::CLOCK_PROCESS_CPUTIME_ID]
before = clocks.map { |name| clock(name) }
threads = Array.new(2) do
  Thread.new do
    (0...ROUNDS).filter_map do |round|
      result = work(round)
      result if (round % KEPT_EVERY).zero?
    end
  end
end
kept = threads.map(&:value)
wall, cpu = clocks.map { |name| clock(name) }.zip(before).map { |now, then_| now - then_ }
puts "ready #{JSON.generate(wall: wall, cpu: cpu, kept: kept.flatten.sum(&:bytesize))}"
$stdout.flush
$stdin.read
