# frozen_string_literal: true

# A parent with 60 MB of strings and 200,000 objects, and a child for each word: `idle` does nothing, `write` writes
# to 20,000 of the strings, `same` writes what they have already, `objects` changes all objects, `collect` collects
# garbage three times, `compact` compacts the heap, `load` loads the code of 100 files of a gem, `refork` loads it and
# then makes a child, `free` frees most of 80 MB, `grow` makes 20 MB of its own and then a child, and `erode` writes to
# 100 strings and makes 50 kB each second. With the word `small`, the parent has half as many strings and objects; with
# `young`, it does not prepare its heap before it forks; with `sparse`, it has 100,000 more objects with free slots
# between them; with `loaded`, it loads the code itself; with `puma`, it has the name of a Puma cluster.
#
# Usage: ruby scenarios/family.rb idle write collect grow

SIZE = ARGV.delete("small") ? 0.5 : 1
KEPT = Array.new(60_000 * SIZE) { |i| "x" * (1000 + (i % 8)) }
GC.disable
OBJECTS = Array.new(200_000 * SIZE) { Object.new }
load_code = lambda do
  methods = Array.new(50) do |i|
    "def run#{i}(a, b = 1, *c); c.map { |d| [a.to_s, b + d.size, d.inspect] }.sort.first; end"
  end
  100.times do |i|
    path = "/app/gems/late-1.0/lib/late#{i}.rb"
    code = "class Late#{i}; #{methods.join("\n")}; end"
    TOPLEVEL_BINDING.eval(code, path, 1)
  end
end
load_code.call if ARGV.delete("loaded")
# The advice of `rbloat report --tree`.
prepare = lambda do
  next Process.warmup if Process.respond_to?(:warmup)

  3.times { GC.start }
  GC.compact
end
prepare.call unless ARGV.delete("young")
if ARGV.delete("sparse")
  SPARSE = Array.new(200_000) { Object.new }.each_slice(2).map(&:first)
  3.times { GC.start }
end
Process.setproctitle("puma 6.4.0 (unix:///run/shop.socket) [shop]") if ARGV.delete("puma")
# What was allocated last keeps the memory before it from being returned. The stack of a thread that has ended retains nothing.
free = lambda do
  Thread.new do
    strings = Array.new(28_000) { "f" * 3000 }
    strings.last
  end.value
end

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
    when "same" then KEPT.first(20_000).each { |text| text.setbyte(0, 120) }
    when "objects" then OBJECTS.each { |object| object.instance_variable_set(:@changed, 1) }
    when "load" then load_code.call
    when "collect" then 3.times { GC.start }
    when "compact" then GC.compact
    when "free"
      own = free.call
      3.times { GC.start }
    when "refork"
      load_code.call
      fork { wait.call }
    when "erode"
      write << "."
      own = []
      KEPT.each_slice(100) do |texts|
        texts.each { |text| text.setbyte(0, 121) }
        own << "y" * 50_000
        break if IO.select([ended], nil, nil, 1)
      end
    when "grow"
      own = Array.new(20_000) { |i| "z" * (1000 + (i % 8)) }
      fork { wait.call }
    end
    wait.call(own)
  end
end
ready.read(ARGV.size + ARGV.count { |word| %w[grow refork].include?(word) })
puts "ready {\"children\": #{children}}"
$stdout.flush
warn "\nIn another terminal: rbloat report --tree #{Process.pid}\nCtrl-D ends it." if $stdin.tty?
$stdin.read
ends.close
Process.waitall
exit!(0)
