# frozen_string_literal: true

require "fiddle"
require "tempfile"

# The memory that malloc itself counts as in use, to the byte: with glibc the chunks of all arenas with their headers, and
# mmapped chunks; with jemalloc and tcmalloc their allocations. The first two count what is in the calling thread's tcache as in use;
# this module does not.
module Malloc
  # More chunks than a list of the tcache holds in any release up to 2.43, and the sizes that have such a list.
  CACHED = 16
  CACHED_SIZES = (24..1032).step(16).to_a.freeze

  FIELDS = 10
  MAP_PRIVATE = 2
  MMAPPED = 4
  IN_USE = 7

  class << self
    # Returns the increase of the bytes in use during the block. Garbage is collected before and after it.
    def growth
      before = settled_bytes
      yield
      settled_bytes - before
    end

    private

    def settled_bytes
      # More than once, because a stale word on the stack may retain a dead object the first time.
      4.times { GC.start }
      return allocated_bytes if mallctl

      property ? current_bytes : in_use_bytes
    end

    # jemalloc's own count, once the calling thread's tcache is empty.
    def allocated_bytes
      result = record.to_i
      mallctl.call(address("thread.tcache.flush"), 0, 0, 0, 0)
      mallctl.call(address("epoch"), 0, 0, result + 8, 8)
      mallctl.call(address("stats.allocated"), result, result + 8, 0, 0)
      record[0, 8].unpack1("Q")
    end

    # tcmalloc's own count.
    def current_bytes
      property.call(address("generic.current_allocated_bytes"), record.to_i)
      record[0, 8].unpack1("Q")
    end

    # tcmalloc's function for its statistics; nil with another allocator.
    def property
      return @property if defined?(@property)

      @property = function("MallocExtension_GetNumericProperty", [Fiddle::TYPE_LONG] * 2, Fiddle::TYPE_INT)
    rescue Fiddle::DLError
      @property = nil
    end

    # The address of a name, which stays where it is.
    def address(name)
      @names ||= {}
      (@names[name] ||= [name, Fiddle::Pointer[name].to_i]).last
    end

    # jemalloc's function for its statistics; nil with another allocator. The second word of the record is the size of
    # the first.
    def mallctl
      return @mallctl if defined?(@mallctl)

      record[8, 8] = [8].pack("Q")
      # For an argument that is a pointer, Fiddle would make an object.
      @mallctl = function("mallctl", [Fiddle::TYPE_LONG] * 5, Fiddle::TYPE_INT)
    rescue Fiddle::DLError
      @mallctl = nil
    end

    # Allocates as many chunks as the tcache may have, which empties it. All other chunks in use are the program's.
    def in_use_bytes
      taken = []
      CACHED_SIZES.each { |bytes| CACHED.times { taken << allocate.call(bytes) } }
      info.call(record)
      fields = record[0, record.size].unpack(format)
      # Each chunk has 8 bytes before its usable bytes.
      fields[IN_USE] + fields[MMAPPED] - taken.sum { |address| usable.call(address) + 8 }
    ensure
      taken.each { |address| release.call(address) }
      taken.clear
    end

    # A function returns a struct of this size through a pointer, its first argument.
    def info
      @info ||= begin
        address = Fiddle::Handle::DEFAULT[wide? ? "mallinfo2" : "mallinfo"]
        address = with_result_in_x8(address) if RUBY_PLATFORM.start_with?("aarch64")
        Fiddle::Function.new(address, [Fiddle::TYPE_VOIDP], Fiddle::TYPE_LONG)
      end
    end

    # On aarch64, the pointer is in a register of its own, which Fiddle does not set. Returns the address of code that does:
    #   mov x8, x0; ldr x16, address; br x16; nop; address
    # It is mapped from a file, because the kernel then makes it known to the processor as code.
    def with_result_in_x8(function)
      code = [0xaa0003e8, 0x58000070, 0xd61f0200, 0xd503201f, function].pack("L4Q")
      map = self.function("mmap", [Fiddle::TYPE_LONG, *[Fiddle::TYPE_SIZE_T] * 5], Fiddle::TYPE_LONG)
      Tempfile.create("code") do |file|
        file.write(code)
        file.flush
        read_and_execute = 1 | 4
        map.call(0, code.bytesize, read_and_execute, MAP_PRIVATE, file.fileno, 0)
      end
    end

    def record
      @record ||= Fiddle::Pointer.malloc(FIELDS * 8, Fiddle::RUBY_FREE)
    end

    def format
      wide? ? "Q#{FIELDS}" : "I#{FIELDS}"
    end

    # glibc has mallinfo2 since 2.33. mallinfo counts up to 4 GiB.
    def wide?
      return @wide if defined?(@wide)

      @wide = begin
        Fiddle::Handle::DEFAULT["mallinfo2"] && true
      rescue Fiddle::DLError
        false
      end
    end

    def allocate
      @allocate ||= function("malloc", [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_LONG)
    end

    def usable
      @usable ||= function("malloc_usable_size", [Fiddle::TYPE_LONG], Fiddle::TYPE_LONG)
    end

    def release
      @release ||= function("free", [Fiddle::TYPE_LONG], Fiddle::TYPE_VOID)
    end

    def function(name, takes, returns)
      Fiddle::Function.new(Fiddle::Handle::DEFAULT[name], takes, returns)
    end
  end
end
