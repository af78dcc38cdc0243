# frozen_string_literal: true

# Ractors were once deep in a recursion, keep rows in a variable of the method that they run, and wait. From Ruby 3.3 on, their threads
# share a few native threads, and have stacks of their own. The request "release" ends the Ractors.

require_relative "../lib/scenario"

$VERBOSE = nil

# A row of a report.
class Row
  def initialize(number)
    @text = "row #{number} ".ljust(2000, "x")
  end
end

# Works in a Ractor.
class Worker
  def deep(left)
    left.zero? ? 0 : [1].each { deep(left - 1) }
  end

  def run(ready)
    deep(600)
    rows = Array.new(100) { |number| Row.new(number) }
    ready.syswrite(".")
    Ractor.receive
    rows.size
  end
end

def release(ractors)
  ractors.each { |ractor| ractor.send(nil) }
  ractors.each { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
  ractors.clear
  GC.start
  { rows: ObjectSpace.each_object(Row).count }
end

ractors = []
Scenario.run(commands: { "release" => -> { release(ractors) } }) do |scale|
  count = defined?(Ractor) ? (100 * scale).ceil : 0
  reader, writer = IO.pipe
  count.times { ractors << Ractor.new(writer.fileno) { |fd| Worker.new.run(IO.for_fd(fd, autoclose: false)) } }
  count.times { reader.read(1) }
  { ractors: ractors.size, rows: ractors.size * 100 }
end
