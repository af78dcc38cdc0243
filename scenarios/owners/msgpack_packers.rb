# frozen_string_literal: true

# Packers whose output was not read. msgpack divides larger chunks into pages of 4 KiB, so several packers share a
# chunk, and keeps a list of the chunks. Each packer's buffer is an object too.

require "rubygems"
require "msgpack"
require_relative "../lib/owners"

TOTAL = 1_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale, shared_with: ["MessagePack::Buffer", "msgpack.so"]) do
    packer = MessagePack::Packer.new
    20_000.times { packer.write(1_000) }
    packer
  end
end
