# frozen_string_literal: true

# A small part of a decoded message keeps the memory of all of it, which the GC does not count (protocolbuffers/protobuf#9467). The
# request "step" loads more lists.

# Its library is a gem, and tests start scenarios without RubyGems.
require "rubygems"
require "google/protobuf"
require_relative "../lib/scenario"

pool = Google::Protobuf::DescriptorPool.generated_pool
pool.build do
  add_message("Item") do
    optional :name, :string, 1
    optional :price, :int64, 2
  end
  add_message("ItemList") { repeated :items, :message, 1, "Item" }
end
Item = pool.lookup("Item").msgclass
ItemList = pool.lookup("ItemList").msgclass

# Has the name of one item of each list.
module Catalog
  NAMES = []
  BYTES = ItemList.encode(ItemList.new(items: Array.new(2000) { |at| Item.new(name: "item #{at} with a text", price: at) }))

  def self.load(count)
    count.times { NAMES << ItemList.decode(BYTES).items.first }
  end
end

def step
  Catalog.load(100)
  GC.start
  { objects: Catalog::NAMES.size }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  Catalog.load((500 * scale).ceil)
  { objects: Catalog::NAMES.size }
end
