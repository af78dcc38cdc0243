# frozen_string_literal: true

# Readers of compressed data that are never closed. Each has buffers in Strings that Ruby hides from programs.

require "stringio"
require "zlib"
require_relative "../lib/scenario"

# Uploads that are read in part.
class Uploads
  BODY = StringIO.new("".b).then { |io| Zlib::GzipWriter.wrap(io) { |gzip| gzip << ("hello " * 100_000) } && io.string }

  OPEN = []

  def self.read_some(count)
    count.times { OPEN << Zlib::GzipReader.new(StringIO.new(BODY)).tap { |reader| reader.read(10) } }
    { readers: OPEN.size }
  end
end

Scenario.run(commands: { "step" => -> { Uploads.read_some(60) } }) do |scale|
  Uploads.read_some((200 * scale).ceil)
end
