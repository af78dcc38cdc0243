# frozen_string_literal: true

require "fiddle"

# What malloc itself says is in use, to the byte: the chunks of all arenas with their headers, and those with a mapping
# of their own. mallinfo2(3) counts what lies in the calling thread's tcache as in use; here it is not.
module Malloc
  # More than a list of the tcache holds in any release up to 2.43, and the chunks that such a list may have.
  CACHED = 16
  CACHED_SIZES = (24..1032).step(16).to_a.freeze

  FIELDS = 10
  MMAPPED = 4
  IN_USE = 7

  class << self
    # How many more bytes are in use after the block. Garbage is collected before and after it.
    def growth
      before = settled_bytes
      yield
      settled_bytes - before
    end

    private

    def settled_bytes
      # More than once because a dead object may be named by a stale word on the stack the first time.
      4.times { GC.start }
      in_use_bytes
    end

    # With as many chunks taken as may be cached, none is: what is left in use besides them is the program's.
    def in_use_bytes
      taken = []
      CACHED_SIZES.each { |bytes| CACHED.times { taken << allocate.call(bytes) } }
      info.call(record)
      fields = record[0, record.size].unpack(format)
      # Each chunk has 8 bytes in front of what its user may have.
      fields[IN_USE] + fields[MMAPPED] - taken.sum { |address| usable.call(address) + 8 }
    ensure
      taken.each { |address| release.call(address) }
      taken.clear
    end

    # A struct of this size is returned through a pointer that is passed first.
    def info
      @info ||= function(wide? ? "mallinfo2" : "mallinfo", [Fiddle::TYPE_VOIDP], Fiddle::TYPE_LONG)
    end

    def record
      @record ||= Fiddle::Pointer.malloc(FIELDS * 8, Fiddle::RUBY_FREE)
    end

    def format
      wide? ? "Q#{FIELDS}" : "I#{FIELDS}"
    end

    # glibc has mallinfo2 since 2.33. What came before counts up to 4 GB.
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
