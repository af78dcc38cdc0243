# frozen_string_literal: true

# Rows in a list. All free memory of malloc's and all free slots once referred to them. Then objects of many kinds are made there: what lies
# behind their structures, in the room that they do not use, are words of earlier owners.

require "set"
require "stringio"
require_relative "../lib/boxes"
require_relative "../lib/scenario"

# Fills memory with references to rows, and gives it back: variables of blocks, and arguments.
module Memory
  MAKERS = (1..124).to_h do |count|
    [count, eval("->(#{Array.new(count) { |number| "a#{number}" }.join(",")}) { -> { a0 } }")]
  end

  def self.fill(rows)
    # In a fiber, because its stack disappears with all stale words.
    Fiber.new do
      number = 0
      made = MAKERS.flat_map do |count, maker|
        Array.new(120) { maker.call(*Array.new(count) { rows[(number += 1) % rows.size] }) }
      end
      made.shuffle!(random: Random.new(1))
      nil
    end.resume
    4.times { GC.start }
  end
end

# What is made in it.
module Made
  KEPT = []

  def self.keep(count, &block)
    KEPT << Array.new(count, &block)
  end

  def self.classes
    keep(600) do |number|
      code = Class.new { class_eval("def call(one, *rest, key: 1); one + key; rescue StandardError; rest; end") }
      (number % 9).times { |it| code.instance_variable_set("@v#{it}", it) }
      (number % 5).times { |it| code.class_variable_set("@@c#{it}", it) }
      (number % 6).times { |it| code.const_set("K#{it}", it) }
      (number % 12).times { |it| code.define_method("m#{it}") { it } }
      const_set("C#{number}", code)
      code.new.tap { |object| 3.times { (number % 12).times { |it| object.public_send("m#{it}") } } }
    end
  end

  def self.variables
    code = Class.new
    keep(600) { |number| code.new.tap { |object| (number % 20).times { |it| object.instance_variable_set("@w#{it}", it) } } }
    keep(300) { |number| "s#{number}".dup.tap { |text| (number % 6).times { |it| text.instance_variable_set("@g#{it}", it) } } }
    keep(300) { |number| Struct.new(*Array.new(1 + (number % 30)) { |it| :"f#{it}" }).new }
  end

  def self.collections
    keep(600) { |number| (0..(number % 40)).to_h { |it| [it, it] }.tap { |hash| (number % 10).times { |it| hash.delete(it) } } }
    keep(600) { |number| [].tap { |array| (number % 70).times { |it| array << it } }.tap { |array| array.shift(number % 3) } }
    keep(300) { |number| Set.new((0..(number % 30)).to_a) }
  end

  def self.code
    keep(600) { |number| ->(one, two = 1, *rest, key: 2) { [number, one, two, rest, key] } }
    keep(200) { |number| number.method(:+) }
    keep(200) { |number| binding.tap { number } }
    keep(200) { |number| (1..number).each_slice(2) }
    keep(100) { |number| (1..number).lazy.map { |it| it + 1 }.select(&:odd?) }
    keep(50) { TracePoint.new(:class) { nil } }
    keep(60) { |number| Thread.new { Thread.current[:own] = number } }.last.each(&:join)
    keep(60) { |number| Fiber.new { Fiber.yield(number) }.tap(&:resume) }
  end

  def self.others
    keep(200) { |number| Thread::Queue.new.tap { |queue| (number % 20).times { |it| queue << it } } }
    keep(300) { |number| /a#{number}(?<x>b+)(c|d)*#{"e" * (number % 20)}/ }
    keep(300) { |number| /(\w)(\w)(\w*)/.match("abc" * (1 + (number % 20))) }
    keep(100) { |number| StringIO.new("x" * number) }
    keep(200) do |number|
      raise "error #{number}"
    rescue RuntimeError => e
      e
    end
  end
end

Scenario.run do |scale|
  count = (4000 * scale).ceil
  KEPT = Box.around(Array.new(count) { Row.new }, 5)
  %i[classes variables collections code others].each do |kind|
    Memory.fill(KEPT.innermost)
    Made.public_send(kind)
  end
  { objects: count }
end
