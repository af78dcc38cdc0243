# frozen_string_literal: true

# Packers with output that was not taken. msgpack hands out pages of 4 kB from larger chunks, several packers' from one,
# which only pointers into their midst lead to.

require "msgpack"
require_relative "../lib/owners"

TOTAL = 1_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale) do
    packer = MessagePack::Packer.new
    20_000.times { packer.write(1_000) }
    packer
  end
end
