# frozen_string_literal: true

# A parent with 60 MB of strings and 200,000 objects, and a child for each word: `idle` does nothing, `write` writes
# to 20,000 of the strings, `collect` collects garbage three times, and `grow` makes 20 MB of its own and then a child.
# With the word `young`, the parent does not prepare its heap before it forks.
#
# Usage: ruby scenarios/family.rb idle write collect grow

KEPT = Array.new(60_000) { |i| "x" * (1000 + (i % 8)) }
GC.disable
OBJECTS = Array.new(200_000) { Object.new }
# The advice of `rbloat report --tree`.
prepare = lambda do
  next Process.warmup if Process.respond_to?(:warmup)

  3.times { GC.start }
  GC.compact
end
prepare.call unless ARGV.delete("young")

# A child ends when the parent has closed its end of this pipe.
ended, ends = IO.pipe
ready, write = IO.pipe
wait = lambda do |_kept = nil|
  write << "."
  ended.read
  Process.waitall
  exit!(0)
end
children = ARGV.map do |word|
  fork do
    ends.close
    case word
    when "write" then KEPT.first(20_000).each { |text| text.setbyte(0, 121) }
    when "collect" then 3.times { GC.start }
    when "grow"
      own = Array.new(20_000) { |i| "z" * (1000 + (i % 8)) }
      fork { wait.call }
    end
    wait.call(own)
  end
end
ready.read(ARGV.size + ARGV.count("grow"))
puts "ready {\"children\": #{children}}"
$stdout.flush
warn "\nIn another terminal: rbloat report --tree #{Process.pid}\nCtrl-D ends it." if $stdin.tty?
$stdin.read
ends.close
Process.waitall
exit!(0)
