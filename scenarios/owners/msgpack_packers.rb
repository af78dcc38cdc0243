# frozen_string_literal: true

# Packers with output that was not taken. msgpack hands out pages of 4 kB from larger chunks, several packers' from one,
# and keeps a list of these chunks; and each packer's buffer is an object too.

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
