# frozen_string_literal: true

# A server whose requests keep objects in many ways at the same time, each in a list of its own: made by C code, behind layers such as
# delegators, in a Fiber, on a deep stack.
#   usage: many_ways.rb OBJECTS_OF_EACH_WAY GARBAGE REQUESTS_PER_SECOND

require "delegate"
require "forwardable"
require "json"
require "set"
require_relative "paced"
begin
  require "csv"
rescue LoadError
  nil # A gem from 3.4 on.
end

$VERBOSE = nil
TIMES, GARBAGE, RATE = Integer(ARGV[0]), Integer(ARGV[1]), Float(ARGV[2])
Row = Struct.new(:id, :name)
Pair = Struct.new(:a, :b)

class Maker
  def make(number)
    Pair.new(number, "made #{number}")
  end
end

class Forwarder
  extend Forwardable
  def_delegators :@maker, :make

  def initialize
    @maker = Maker.new
  end
end

class Finder
  define_method(:defined) { |number| Pair.new(number, "defined #{number}") }

  def method_missing(name, number)
    name == :find_row ? Pair.new(number, "found #{number}") : super
  end

  def respond_to_missing?(name, *)
    name == :find_row
  end
end

class Leaks
  HASH = { "a" => 1, "b" => 2 }
  DUMP = Marshal.dump({ x: [1, "two"], y: "three" })
  DELEGATOR, FORWARDER, FINDER, WEAK = SimpleDelegator.new(Maker.new), Forwarder.new, Finder.new, ObjectSpace::WeakMap.new
  LISTS = %i[array json split match copy struct marshal time set weak deep missing defined forward delegate block fiber map string gsub literal object]
          .push(*(:csv if defined?(CSV)))
  LISTS.each { |way| const_set("L_#{way.upcase}", []) }

  def array(number) L_ARRAY << Array.new(6, number) end
  def json(_) L_JSON << JSON.parse('{"id":1,"name":"abc","tags":["a","b"]}') end
  def split(_) L_SPLIT << "a,b,c,d,e,f".split(",") end
  def match(number) L_MATCH << /(\w+)-(\d+)/.match("abc-123 #{number}") end
  def copy(_) L_COPY << HASH.dup end
  def struct(number) L_STRUCT << Row.new(number, "row #{number}") end
  def marshal(_) L_MARSHAL << Marshal.load(DUMP) end
  def csv(number) L_CSV << CSV.parse_line("a,b,c#{number}") end
  def time(_) L_TIME << Time.now end
  def set(number) L_SET << Set.new([number, number + 1]) end
  def missing(number) L_MISSING << FINDER.find_row(number) end
  def defined(number) L_DEFINED << FINDER.defined(number) end
  def forward(number) L_FORWARD << FORWARDER.make(number) end
  def delegate(number) L_DELEGATE << DELEGATOR.make(number) end
  def block(number) [1].each { |one| L_BLOCK << ["block", one, "b#{number}"] } end
  def map(_) L_MAP << [1, 2, 3].map(&:to_s) end
  def string(number) L_STRING << number.to_s end
  def gsub(_) L_GSUB << "hello world".gsub("o", "0") end
  def literal(number) L_LITERAL << { id: number, name: "n" } end
  def object(_) L_OBJECT << Maker.new end

  def weak(number)
    text = "weak #{number}"
    WEAK[text] = text
    L_WEAK << text
  end

  def deep(number, depth = 120)
    depth.zero? ? L_DEEP << Row.new(number, "deep #{number}") : deep(number, depth - 1)
  end

  def fiber(number)
    @fiber ||= Fiber.new { |given| loop { L_FIBER << Row.new(given, "fiber #{given}"); given = Fiber.yield } }
    @fiber.resume(number)
  end
end

leaks = Leaks.new
Paced.run(RATE) do |number|
  (GARBAGE / 4).times { |i| { id: i, name: "n#{i}", tags: [i] }[:id] }
  Leaks::LISTS.shuffle.each { |way| TIMES.times { |more| leaks.public_send(way, number + more) } }
end
