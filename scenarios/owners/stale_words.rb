# frozen_string_literal: true

# Stale words in all unused memory of Ruby's objects, and numbers and text that look like addresses. None of them is a
# reference. Each kind has victims of its own class, to which it seems to refer.

require "fiddle"
require "stringio"
require_relative "../lib/malloc"
require_relative "../lib/scenario"

# The objects to which stale words seem to refer. Their classes are created first, so that the structures of the classes
# have no stale words.
module Victims
  NAMES = %i[
    WriteBuffer ReadBuffer ArrayCapacity TableCapacity DeletedEntries StructMembers Variables StringCapacity StringIOBytes
    RegexpTable Digits FewDigits ArraySlot ObjectSlot StructSlot PairsSlot
  ].freeze
  NAMES.each { |name| const_set(name, Class.new(String)) }
end

# The true root of the victims. Its path to them is longer than that of the objects that seem to retain them.
module Vault
  STORE = {}
end

# The objects that seem to retain the victims.
module Slack
  HOLDERS = []
end

# Native memory: a chain of chunks, each of which points to the next one.
class Chain < Fiddle::Pointer
end
CHAIN = []
# Less than malloc's initial threshold for mappings.
NODE_BYTES = 100_000
NODES = 600

# Memory as words.
module Memory
  CLEARED = 200
  SMALL_CLEARED = 20
  ZEROS = "\0" * 8192

  class << self
    def words(at, count)
      Fiddle::Pointer.new(at)[0, count * 8].unpack("Q*")
    end

    def address(object)
      Fiddle.dlwrap(object)
    end

    # Returns the words of an object's slot.
    def slot(object)
      words(address(object), slot_bytes(object) / 8)
    end

    # Since Ruby 3.2 slots have different sizes, and Ruby reports them.
    def slot_bytes(object)
      JSON.parse(ObjectSpace.dump(object))["slot_size"] || 40
    end

    # Returns the pointers in memory, which need not be aligned to words (in the structure of an IO).
    def pointers(at, bytes)
      text = Fiddle::Pointer.new(at)[0, bytes]
      (0..bytes - 8).step(4).map { |offset| text[offset, 8].unpack1("Q") }
    end

    # Fills +count+ chunks of +bytes+ with +words+, frees them, and returns their addresses. Small chunks in between
    # prevent that free chunks are merged.
    def leave(words, bytes, count)
      text = words.cycle.first(bytes / 8).pack("Q*")
      chunks = Array.new(count) { [Fiddle.malloc(bytes), Fiddle.malloc(24)].first }
      chunks.each { |at| Fiddle::Pointer.new(at)[0, text.bytesize] = text }
      chunks.each { |at| Fiddle.free(at) }
      chunks
    end

    # Clears the stale words in memory that was not used again, in chunks of all sizes, so that Ruby's own structures
    # do not get them.
    def clear(bytes)
      sizes = [bytes] * CLEARED + (24..1032).step(16).to_a * SMALL_CLEARED
      chunks = sizes.map { |size| Fiddle.malloc(size).tap { |at| Fiddle::Pointer.new(at)[0, size] = ZEROS[0, size] } }
      chunks.each { |at| Fiddle.free(at) }
    end
  end
end

module Slack
  VICTIMS = 10
  VICTIM_BYTES = 160_000
  HOLDERS_WITH_STALE_WORDS = 5
  CHUNKS = 40
  TRIES = 50

  @truth = []
  @nodes = []

  class << self
    attr_reader :truth

    def make_chain
      @bytes = Malloc.growth do
        @nodes = Array.new(NODES) { Fiddle.malloc(NODE_BYTES) }
        @nodes.each_with_index do |at, index|
          Fiddle::Pointer.new(at)[0, NODE_BYTES] = [@nodes[index + 1] || 0].pack("Q") + "\0" * (NODE_BYTES - 8)
        end
        CHAIN << Chain.new(@nodes.first)
      end
    end

    def chain
      { owner: "Chain", objects: 1, native_bytes: @bytes }
    end

    # Returns the class of the victims, the words that seem to refer to them and to the chain, and the victims.
    def victims(name)
      owner = Victims.const_get(name)
      all = Array.new(VICTIMS) { owner.new << "v" * VICTIM_BYTES }
      Vault::STORE[name] = [[[[all]]]]
      words = all.map { |victim| Memory.address(victim) }.zip(@nodes.each_slice(NODES / VICTIMS).map(&:last)).flatten
      [owner, words, all]
    end

    # Creates objects with the block, which have memory of one of +sizes+, and keeps those whose memory has stale words.
    # Words of the chain are used only if +native+, because some of the memory becomes Ruby's own. +through+: the slot
    # refers to a structure that refers to the memory.
    def in_memory(name, *sizes, through: false, native: false)
      owner, words, all = victims(name)
      words = all.map { |victim| Memory.address(victim) } unless native
      kept = []
      # Ruby allocates its own structures for the block before there are stale words.
      yield
      TRIES.times do
        chunks = sizes.flat_map { |bytes| Memory.leave(words.rotate(kept.size), bytes, CHUNKS) }
        made = yield
        kept.concat(made.select { |object| named(object, through).any? { |at| chunks.include?(at) } })
        sizes.each { |bytes| Memory.clear(bytes) }
        break if kept.size >= HOLDERS_WITH_STALE_WORDS
      end
      keep(owner, kept)
    end

    # Creates objects in slots of former objects, which +former+ creates. If all slots have the same size, Ruby clears
    # them.
    def in_slots(name, former)
      return if RUBY_VERSION < "3.2"

      owner, _, all = victims(name)
      # Ruby frees pages without objects, so some objects stay until the slots are used again.
      few, some = all.first(4), []
      Fiber.new { 20_000.times { |it| former.call(few).tap { |own| some << own if it % 50 == 0 } } }.resume
      GC.start
      made = Array.new(20_000) { yield }
      some.clear
      addresses = all.map { |victim| Memory.address(victim) }
      count = Memory.slot_bytes(made.first) / 8
      stale = ->(object) { (Memory.words(Memory.address(object), count) & addresses).any? }
      keep(owner, made.select(&stale).first(1_000))
    end

    # Keeps objects that the block creates from words or victims.
    def of(name)
      owner, words, all = victims(name)
      keep(owner, Array.new(HOLDERS_WITH_STALE_WORDS) { |number| yield(words.rotate(number), all) })
    end

    private

    def named(object, through)
      through ? Memory.pointers(Memory.slot(object)[2], 192) : Memory.slot(object)
    end

    def keep(owner, objects)
      Slack::HOLDERS << objects
      path = ["Vault::STORE", "Hash", "Array × 5", owner.name]
      @truth << { owner: owner.name, objects: VICTIMS, planted: objects.size, path: path }
    end
  end
end

def pipe(text)
  reader, writer = IO.pipe
  writer.sync = false
  writer.write(text)
  [reader, writer]
end

LARGE = Struct.new(*Array.new(126) { |it| "m#{it}".to_sym })
MEMBERS = Array.new(126, 1).freeze
SMALL = Struct.new(:a, :b, :c, :d)

# Ruby learns the number of variables from the first object of a class. Later objects have them in their slots.
CLASSES = Array.new(200) { Class.new }
SIX_VARIABLES = Class.new

def with_variables(count, owner = CLASSES.shift)
  object = owner.new
  count.times { |it| object.instance_variable_set("@v#{it}", it) }
  object
end

# Fills the transient heap of Ruby 3.2 and older, so that small objects use malloc.
def fill_transient_heap
  Array.new(RUBY_VERSION < "3.3" ? 25_000 : 0) { Array.new(200, 1).push(2) }
end

GC.disable
Scenario.run do |_|
  Slack.make_chain
  # First, because there are no other free slots yet.
  Slack.in_slots("ArraySlot", ->(few) { [*few, *few] }) { Array.new(4, 1) }
  3.times { with_variables(6, SIX_VARIABLES) }
  Slack.in_slots("ObjectSlot", ->(few) { [*few, *few] }) { with_variables(1, SIX_VARIABLES) }
  Slack.in_slots("StructSlot", ->(few) { [*few, *few] }) { SMALL.new(1, 2, 3, 4) }
  Slack.in_slots("PairsSlot", ->(few) { few.to_h { |it| [it.object_id, it] } }) { {}.tap { |it| it[1] = 2 } }
  Slack.in_memory("WriteBuffer", 8192, through: true, native: true) { Array.new(3) { pipe("text").last } }
  Slack.in_memory("ReadBuffer", 8192, through: true, native: true) do
    Array.new(3) do
      reader, writer = pipe("some text")
      writer.flush
      reader.getc
      reader
    end
  end
  # A compiled expression has a table of characters, which is not filled for this way to search. The first seven get what
  # malloc kept at hand.
  Slack.in_memory("RegexpTable", 448, 456, native: true) { Array.new(12) { Regexp.new(".") } }
  Slack.in_memory("ArrayCapacity", 3200) { Array.new(3) { Array.new(400, 1).select.with_index { |_, it| it < 3 } } }
  Slack.in_memory("TableCapacity", 3072, through: RUBY_VERSION < "3.3") do
    Array.new(3) { Array.new(65) { |it| [it, it] }.to_h }
  end
  Slack.of("DeletedEntries") do |_, victims|
    table = Array.new(30) { |it| [it, it] }.to_h
    victims.each { |victim| table[victim.object_id] = victim }
    victims.each { |victim| table.delete(victim.object_id) }
    table
  end
  filling = fill_transient_heap
  Slack.in_memory("StructMembers", 1008) { Array.new(3) { LARGE.new(*MEMBERS) } }
  Slack.in_memory("Variables", *(48..208).step(16)) do
    Array.new(3) { with_variables(RUBY_VERSION < "3.2" ? 6 : 7) }
  end
  Slack.in_memory("StringCapacity", 4001) { Array.new(3) { String.new(capacity: 4000) << "x" } }
  Slack.of("StringIOBytes") { |words, _| StringIO.new(words.cycle.first(500).pack("Q*")) }
  Slack.of("Digits") { |words, _| words.cycle.first(500).pack("Q*").reverse.unpack1("H*").to_i(16) }
  Slack.of("FewDigits") { |words, _| words.first(3).pack("Q*").reverse.unpack1("H*").to_i(16) }
  filling.clear
  GC.enable
  # Otherwise the freed memory would be larger than the rest.
  GC.start
  Fiddle::Function.new(Fiddle::Handle::DEFAULT["malloc_trim"], [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_INT).call(0)
  { owners: [Slack.chain], victims: Slack.truth }
end
