# frozen_string_literal: true

# The same objects, retained by every kind of root that Ruby has. Each kind has a class of its own.

require "zlib"
require_relative "../lib/owners"

TOTAL = 40

# Objects of each kind of root.
module Kept
  ByConstant = Class.new(Zlib::Deflate)
  ByGlobal = Class.new(Zlib::Deflate)
  ByClass = Class.new(Zlib::Deflate)
  ByClassVariable = Class.new(Zlib::Deflate)
  ByInstance = Class.new(Zlib::Deflate)
  ByStruct = Class.new(Zlib::Deflate)
  ByBlock = Class.new(Zlib::Deflate)
  ByFiberLocal = Class.new(Zlib::Deflate)
  ByThreadVariable = Class.new(Zlib::Deflate)
  ByStack = Class.new(Zlib::Deflate)
end

# Retains objects in variables of its own, and in one of its instance.
class Catalog
  @cache = []
  @@products = []
  INSTANCE = new

  class << self
    attr_reader :cache

    def products
      @@products
    end
  end

  def orders
    @orders ||= {}
  end
end

Holder = Struct.new(:objects)
HOLDER = Holder.new([])

def block_over(objects)
  -> { objects }
end

BLOCK = block_over([])

HANDOVER = Queue.new

# Starts a thread that retains objects in a local of its fiber, in a thread variable, and in a variable on its stack,
# which it hands over to be filled.
def start_thread
  Thread.new do
    Thread.current[:local] = []
    Thread.current.thread_variable_set(:variable, [])
    on_stack = []
    HANDOVER << on_stack
    Scenario.park
  end
end

$kept = []

Owners.run do |scale|
  count = (TOTAL * scale).ceil
  kept_in = lambda do |owner, by, &keep|
    Owners.measure(count, by, make: ->(_) { owner.new }, &keep)
  end
  Owners.keep(count) { Kept::ByConstant.new }
  kept_in.call(Kept::ByGlobal, ["$kept", "Array"]) { |_, object| $kept << object }
  kept_in.call(Kept::ByClass, ["Catalog", "@cache", "Array"]) { |_, object| Catalog.cache << object }
  kept_in.call(Kept::ByClassVariable, ["Catalog", "@@products", "Array"]) { |_, object| Catalog.products << object }
  kept_in.call(Kept::ByInstance, ["Catalog::INSTANCE", "@orders", "Hash"]) do |index, object|
    Catalog::INSTANCE.orders[index] = object
  end
  kept_in.call(Kept::ByStruct, ["HOLDER", "Array"]) { |_, object| HOLDER.objects << object }
  kept_in.call(Kept::ByBlock, ["BLOCK", "objects", "Array"]) { |_, object| BLOCK.call << object }

  thread = start_thread
  on_stack = HANDOVER.pop
  kept_in.call(Kept::ByFiberLocal, ["Thread", ":local", "Array"]) { |_, object| thread[:local] << object }
  kept_in.call(Kept::ByThreadVariable, ["Thread", ":variable", "Array"]) do |_, object|
    thread.thread_variable_get(:variable) << object
  end
  kept_in.call(Kept::ByStack, ["Thread", "on_stack", "Array"]) { |_, object| on_stack << object }
  nil
end
