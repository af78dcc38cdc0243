# frozen_string_literal: true

# Many small programs that grow, or only seem to. The first argument is the name of one of them; `--list` prints all names,
# with the verdict that three snapshots with a step between them must reach: `leak`, or `no_leak`. A `hidden_leak` takes four.

require "fiddle"
require "stringio"
require "weakref"
require "zlib"
require_relative "../lib/scenario"

# Each program is a block that does one step. It gets the number of the step, from 1 on.
module Programs
  ALL = {}

  def self.leak(name, &step)
    ALL[name.to_s] = ["leak", step]
  end

  def self.hidden_leak(name, &step)
    ALL[name.to_s] = ["hidden_leak", step]
  end

  def self.no_leak(name, &step)
    ALL[name.to_s] = ["no_leak", step]
  end
end

MANY = 10_000
BYTES = 150

def text(bytes = BYTES)
  "x" * bytes
end

# Does the block in a thread of its own, because its stack disappears. A stale word on the stack would retain garbage.
def apart(&block)
  Thread.new(&block).join
  nil
end

# What programs retain.
module Kept
  LIST = []
  TABLE = {}
  POOL = []
  Session = Struct.new(:user, :data)

  # A request with a block that refers to it.
  class Request
    def initialize
      @body = text
    end

    def callback
      -> { @body }
    end
  end

  # A node of a chain.
  class Node
    def initialize(following)
      @following = following
      @body = text
    end
  end

  class << self
    attr_accessor :memo, :head
  end
  self.memo = {}
end
$kept = []

# Blocks of native memory in a list that a variable of the C library refers to. Nothing else uses that variable. No object keeps an
# address, because it would own the memory.
class NativeList
  ROOM = 40_000
  WORD = Fiddle::SIZEOF_VOIDP
  LIBC = Fiddle::Handle::DEFAULT
  TAKE = Fiddle::Function.new(LIBC["posix_memalign"], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_SIZE_T], Fiddle::TYPE_INT)
  FILL = Fiddle::Function.new(LIBC["memset"], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_INT, Fiddle::TYPE_SIZE_T], Fiddle::TYPE_VOIDP)

  def initialize(name)
    @variable = LIBC[name]
    @count = 0
    take(@variable, ROOM * WORD)
  end

  # Allocates blocks of so many bytes.
  def add(count, bytes)
    list = address(@variable)
    count.times { |it| take(list + ((@count + it) * WORD), bytes) }
    @count += count
  end

  # Frees all blocks.
  def clear
    list = address(@variable)
    @count.times { |it| Fiddle.free(address(list + (it * WORD))) }
    FILL.call(list, 0, @count * WORD)
    @count = 0
  end

  def self.buffers
    @buffers ||= new("argp_program_version")
  end

  def self.entries
    @entries ||= new("argp_program_bug_address")
  end

  private

  # Allocates a block. posix_memalign(3) writes its address to `place`.
  def take(place, bytes)
    raise NoMemoryError unless TAKE.call(place, WORD, bytes).zero?

    FILL.call(address(place), 0, bytes)
  end

  # The address in a word of memory.
  def address(place)
    Fiddle::Pointer.new(place, WORD)[0, WORD].unpack1("J")
  end
end

module Programs
  leak(:sessions) { |step| MANY.times { |it| Kept::TABLE[[step, it]] = Kept::Session.new(it, text) } }
  leak(:callbacks) { MANY.times { Kept::LIST << Kept::Request.new.callback } }
  leak(:global_variable) { MANY.times { $kept << [text] } }
  leak(:memo_of_a_class) { |step| MANY.times { |it| Kept.memo["#{step} #{it}"] = text } }
  leak(:chain) { MANY.times { Kept.head = Kept::Node.new(Kept.head) } }
  leak(:thread_variable) do
    list = Thread.main.thread_variable_get(:kept) || []
    MANY.times { list << text }
    Thread.main.thread_variable_set(:kept, list)
  end
  leak(:fast) { 10_000.times { Kept::LIST << text(3_000) } }
  leak(:slow) { 10_000.times { Kept::LIST << text(100) } }
  leak(:string_ios) { MANY.times { Kept::LIST << StringIO.new(text) } }
  leak(:finalizers_that_capture_their_object) do
    MANY.times do
      object = Kept::Request.new
      ObjectSpace.define_finalizer(object, proc { object })
    end
  end
  leak(:variables_of_strings) do
    MANY.times { Kept::LIST << text(10).tap { |it| it.instance_variable_set(:@data, text) } }
  end
  leak(:native_objects) { 20.times { Kept::LIST << Zlib::Deflate.new } }
  leak(:behind_large_lists) do |step|
    4.times { |it| Kept.const_set("STATIC_#{it}", Array.new(12_000 - it * 1_000) { text(1_000) }) } if step == 1
    4_000.times { Kept::LIST << text(600) }
  end
  leak(:lost_native_memory) { 5_000.times { Fiddle.malloc(1_000) } }
  leak(:list_of_a_library) { NativeList.entries.add(2_000, 2_000) }
  # The buffers of the same library become fewer.
  hidden_leak(:list_behind_buffers) do |step|
    5.times do |round|
      NativeList.entries.add(200, 3_000)
      NativeList.buffers.clear
      NativeList.buffers.add(11_000 - (400 * ((5 * step) + round)), 2_000)
      Kept::LIST << text(2_400)
    end
  end

  # In a hidden object, since nobody takes the output.
  leak(:buffer_of_a_stream) { (Kept.memo[:stream] ||= Zlib::Deflate.new(Zlib::NO_COMPRESSION)) << Random.bytes(4_000_000) }

  no_leak(:cache_that_fills) { |step| Kept::TABLE.store(step, Array.new(MANY) { text }) if step == 1 }
  no_leak(:cache_of_limited_size) do |step|
    MANY.times { |it| Kept::TABLE[[step, it]] = text }
    Kept::TABLE.shift while Kept::TABLE.size > MANY
  end
  no_leak(:pool_of_connections) { Kept::POOL << Zlib::Deflate.new while Kept::POOL.size < 20 }
  no_leak(:levels_off) { |step| (MANY / (step**4)).times { Kept::LIST << text } }
  no_leak(:autoloading) do |step|
    code = Array.new(1_000) { |it| "def method_#{step}_#{it}(a); [a, a.to_s * 2, { key: a }].map(&:to_s); end" }
    Object.class_eval(code.join("\n"))
  end
  no_leak(:table_loaded_once) { |step| Kept::LIST.concat(Array.new(50_000) { text }) if step == 1 }
  no_leak(:backlog_that_drains) { |step| step == 1 ? MANY.times { Kept::LIST << text } : Kept::LIST.clear }
  no_leak(:saw_tooth) { |step| step.odd? ? MANY.times { Kept::LIST << text } : Kept::LIST.slice!(0, MANY * 9 / 10) }
  # All of them are replaced each time, by others with the same mean size.
  no_leak(:buffers_of_a_library) do |step|
    5.times do |round|
      count = 1_500 + (100 * ((5 * step) + round))
      NativeList.buffers.clear
      (step.odd? ? [2_000, 2_000] : [1_000, 3_000]).each { |bytes| NativeList.buffers.add(count, bytes) }
      Kept::LIST << text(2_400)
    end
  end
  no_leak(:results_that_are_replaced) { apart { Kept::LIST.replace(Array.new(MANY) { text }) } }
  no_leak(:fragmentation) do |step|
    apart do
      all = Array.new(MANY * step) { |it| text(200 + (it % 700)) }
      Kept::LIST.replace((0...2_000).map { |it| all[it * all.size / 2_000] })
    end
    GC.start
  end
  no_leak(:sorted_and_dropped) { apart { Array.new(100_000) { text }.sort.size } }
  # Garbage that is not collected.
  no_leak(:garbage) { apart { 50_000.times { Kept::Session.new(1, text) } } }
  no_leak(:garbage_with_native_memory) { apart { 20.times { Zlib::Deflate.new } } }
  no_leak(:garbage_with_variables) do
    apart { MANY.times { text.instance_variable_set(:@data, text) } }
  end
  no_leak(:garbage_with_ids) { apart { MANY.times { Kept::Request.new.object_id } } }
  no_leak(:garbage_in_a_weak_map) do
    map = (Kept.memo[:map] ||= ObjectSpace::WeakMap.new)
    apart { MANY.times { map[Kept::Request.new] = Kept::Request.new } }
  end
  no_leak(:garbage_with_weak_references) { apart { MANY.times { WeakRef.new(Kept::Request.new) } } }
end

name = ARGV.shift
if name == "--list"
  Programs::ALL.each { |program, (expect, _)| puts "#{program} #{expect}" }
  exit
end
_, step = Programs::ALL.fetch(name)
# The GC must not decide when garbage disappears.
GC.disable if name.start_with?("garbage")
@step = 0
take_step = lambda do
  step.call(@step += 1)
  {}
end
collect = lambda do
  GC.start
  {}
end
Scenario.run(commands: { "step" => take_step, "collect" => collect }) do
  take_step.call
end
