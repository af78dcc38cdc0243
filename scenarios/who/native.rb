# frozen_string_literal: true

# Growth within C code, some of which runs without the GVL, in four threads at once. Nothing is freed meanwhile: memory that is
# used again would be faulted in twice.

require "tempfile"
require "zlib"
require_relative "truth"

ROUNDS = 6
MEBIBYTE = 1 << 20
FILE = Tempfile.new("who").tap { |file| file.write("f" * (12 * MEBIBYTE)) && file.flush }
DEFLATED = Zlib::Deflate.deflate("abcdefgh" * MEBIBYTE)
MARSHALLED = Marshal.dump(Array.new(60_000) { |i| "item #{i}" * 3 })
KEPT = []

def repeat
  KEPT << "y" * (8 * MEBIBYTE)
end

def inflate
  KEPT << Zlib::Inflate.inflate(DEFLATED)
end

def read_file
  KEPT << File.binread(FILE.path)
end

def load_objects
  KEPT << Marshal.load(MARSHALLED)
end

Truth.run do
  threads = %i[repeat inflate read_file load_objects].map do |name|
    Thread.new do
      ROUNDS.times do
        Truth.of("Object##{name}") { send(name) }
        sleep 0.01
      end
    end
  end
  threads.each(&:join)
end
