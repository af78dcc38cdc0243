# A small program with each kind of memory that layouts are derived from, whose image is a test. The line that it prints is the truth:
# what Ruby itself says.

require 'objspace'
require 'set'

Warning[:experimental] = false

class Item; end
class Big; end
Row = Struct.new(:first, :second, :third)

# Objects are named by the path that must lead there.
module Kept
  LIST = Array.new(300) { Item.new }
  TABLE = Array.new(40) { |n| [n, Class.new(Item)] }.to_h
  @@rows = Array.new(60) { |n| Row.new(n, +"row #{n}", nil) }
  @by_name = Array.new(50) { |n| ["name #{n}", Big.new] }.to_h
end
$texts = Array.new(200) { |n| 'x' * (40 + n * 10) }
$room = Array.new(20) { |n| String.new("room #{n}", capacity: 2000 + n) }
$sets = Array.new(10) { |n| Set.new((0..n * 7).to_a) }
$patterns = Array.new(5) { |n| Regexp.new("(a|b){#{n + 2}}") }
Kept.instance_variable_get(:@by_name).each_value { |big| 40.times { |n| big.instance_variable_set(:"@variable_#{n}", n) } }

fiber = Fiber.new { held = Array.new(30) { Item.new }; Fiber.yield; held }
fiber.resume
$fiber = fiber
$thread = Thread.new { Thread.current[:held] = Array.new(30) { Item.new }; sleep }
Thread.pass until $thread.stop?

3.times { GC.start }
# With several Ractors, Ruby does not count objects that they might share.
classes = [Item, Big, Row, Set].to_h do |type|
  [type.name, [ObjectSpace.each_object(type).count, ObjectSpace.memsize_of_all(type)]]
end

def wait_here(port)
  held = Array.new(500) { |n| "string #{n} of a Ractor" }
  port << 1
  Ractor.receive
  held
end
port = Ractor::Port.new
$ractors = ['first', nil].map { |name| Ractor.new(port, name: name) { |port| wait_here(port) } }
2.times { port.receive }
# The value of a Ractor that has ended.
class Ended; end
$ended = Ractor.new { Array.new(200) { Ended.new } }
sleep 0.01 until $ended.inspect.include?('terminated')
3.times { GC.start }

counts = {}
GC.disable
2.times { ObjectSpace.count_objects(counts) }
slots = %i[TOTAL T_OBJECT].map { |kind| counts[kind] }
classes = classes.map { |name, numbers| "\"#{name}\":[#{numbers.join(',')}]" }.join(',')
$stdout.write("ready {\"version\":\"#{RUBY_VERSION}\",\"classes\":{#{classes}},\"slots\":[#{slots.join(',')}]}\n")
$stdout.flush
sleep
