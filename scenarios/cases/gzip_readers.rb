# frozen_string_literal: true

# Readers of compressed data that are never closed. Each has buffers in Strings that Ruby hides from programs. Half of them are kept
# by a variable of a thread, the others by one of a fiber.

require "stringio"
require "zlib"
require_relative "../lib/scenario"

# Uploads that are read in part.
class Uploads
  BODY = StringIO.new("".b).then { |io| Zlib::GzipWriter.wrap(io) { |gzip| gzip << ("hello " * 100_000) } && io.string }

  def initialize
    @open = []
  end

  def read_some(count)
    count.times { @open << Zlib::GzipReader.new(StringIO.new(BODY)).tap { |reader| reader.read(10) } }
  end
end

WORK = Queue.new
DONE = Queue.new

def serve(uploads)
  uploads.read_some(WORK.pop)
  DONE << true
end

def give_each(readers)
  2.times { WORK << readers }
  2.times { DONE.pop }
  { readers: 2 * readers }
end

Scenario.run(expect: "ruby.malloc", commands: { "step" => -> { give_each(30) } }) do |scale|
  # Each takes one order at a time: none waits while the other has none.
  Thread.new do
    Thread.current.thread_variable_set(:streams, Uploads.new)
    loop { serve(Thread.current.thread_variable_get(:streams)) }
  end
  Thread.new do
    Fiber.new do
      Thread.current[:open] = Uploads.new
      loop { serve(Thread.current[:open]) }
    end.resume
  end
  give_each((100 * scale).ceil)
end
