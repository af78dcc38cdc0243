# frozen_string_literal: true

require "objspace"

# Measures the memory that a block allocates.
module Rbloat
  # The memory that a block allocated and kept, and how much of it the GC knows about. {Rbloat.probe} returns it.
  #
  # Sizes are in bytes. Allocations of other threads during the block are included.
  #
  # @!attribute [r] malloc_bytes
  #   @return [Integer] growth of malloc's memory in use, before any garbage is freed
  # @!attribute [r] told_bytes
  #   @return [Integer] memory of malloc that Ruby and extensions reported to the GC
  # @!attribute [r] freed_bytes
  #   @return [Integer] memory of malloc that a GC freed afterwards
  # @!attribute [r] objects
  #   @return [Integer] number of new objects
  # @!attribute [r] ruby_bytes
  #   @return [Integer] growth of Ruby's own objects (strings, arrays, ...), including their slots
  # @!attribute [r] data_bytes
  #   @return [Integer] growth of the objects of extensions, as reported by these
  Probe = Struct.new(:malloc_bytes, :told_bytes, :freed_bytes, :objects, :ruby_bytes, :data_bytes,
                     keyword_init: true) do
    # @return [Integer] memory that was not reported to the GC
    def unseen_bytes
      [malloc_bytes - told_bytes, 0].max
    end

    # @return [Float] the share of malloc's memory that was reported to the GC, 0 to 1
    def seen
      malloc_bytes.positive? ? told_bytes.fdiv(malloc_bytes).clamp(0.0, 1.0) : 1.0
    end

    # @return [Float] the share of malloc's memory that a GC could free, 0 to 1
    def freed
      malloc_bytes.positive? ? freed_bytes.fdiv(malloc_bytes).clamp(0.0, 1.0) : 1.0
    end

    # @return [String] a summary for people
    def verdict
      return "The block kept almost no memory of malloc." if malloc_bytes < Probe::LITTLE

      text = "The block kept #{Units.binary(malloc_bytes)} of malloc's memory. " \
             "The GC knows about #{(seen * 100).round} % of it, and could free #{(freed * 100).round} %."
      # More collections free nothing of a leak.
      text += Probe::UNSEEN if seen < Probe::ENOUGH && freed > 1 - Probe::ENOUGH
      text += Probe::KEPT if freed < Probe::ENOUGH
      text
    end
    alias_method :to_s, :verdict
  end

  # Measures.
  class Probe
    # Smaller amounts cannot be measured reliably.
    LITTLE = 16 * 1024
    # Less than 1, since extensions do not report the headers of chunks.
    ENOUGH = 0.75
    UNSEEN = " Extensions do not report the rest, and dead parts of it pile up: free them explicitly, or use " \
             "Rbloat::NativePressure."
    KEPT = " What the GC could not free is retained by objects, or leaked: a leak keeps as much again at each call."

    class << self
      private

      # @raise [UnsupportedError, Ractor::UnsafeError]
      def check_support
        Malloc.check("a probe")
        raise Ractor::UnsafeError, "a probe works only in the main Ractor" unless main_ractor?
      end

      # Measures the block.
      # @return [Probe]
      def measure(&block)
        was_disabled = settle
        before = snapshot
        run(&block)
        after = snapshot
        GC.enable
        clear_stack
        settle
        final = Malloc.exact_in_use
        from(before, after, final)
      ensure
        was_disabled ? GC.disable : GC.enable
      end

      # ObjectSpace.count_objects_size works only in the main Ractor.
      def main_ractor?
        !defined?(Ractor) || Ractor.current == Ractor.main
      end

      # Collects three times, since stale words on the stack can keep dead objects alive, and disables the GC. Returns
      # true if it was disabled before.
      def settle
        was_disabled = GC.enable
        3.times { GC.start }
        GC.disable
        was_disabled
      end

      # Returns nil, so that the value of the block is not on the stack.
      def run
        yield
        nil
      end

      # Overwrites the part of the stack that the block used.
      def clear_stack(depth = 100)
        a = b = c = d = e = f = nil
        depth.zero? ? [a, b, c, d, e, f] : clear_stack(depth - 1)
      end

      def snapshot
        sizes = ObjectSpace.count_objects_size
        data = sizes.fetch(:T_DATA, 0)
        {
          objects: GC.stat(:total_allocated_objects),
          ruby: sizes.fetch(:TOTAL) - data, data: data,
          told: GC.stat(:malloc_increase_bytes), in_use: Malloc.exact_in_use
        }
      end

      def from(before, after, final)
        grown = after.to_h { |name, value| [name, value - before.fetch(name)] }
        new(malloc_bytes: grown[:in_use], told_bytes: grown[:told], freed_bytes: after[:in_use] - final,
            objects: grown[:objects], ruby_bytes: grown[:ruby], data_bytes: grown[:data])
      end
    end
  end

  # Runs the block, and measures how much memory it allocated and kept, how much of it was reported to the GC, and how
  # much a GC can free. The value of the block is dropped. The GC runs several times before and after the block, but not
  # during it. Code that allocates more the first time, such as a cache, should run once before.
  #
  #     puts Rbloat.probe { connection.exec(sql) }
  #
  # @return [Probe]
  # @raise [UnsupportedError] if malloc is not glibc's
  # @raise [Ractor::UnsafeError] in a Ractor other than the main one
  def self.probe(&block)
    raise ArgumentError, "a probe needs a block" unless block

    Probe.__send__(:check_support)
    Probe.__send__(:measure, &block)
  end
end
