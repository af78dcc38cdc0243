# frozen_string_literal: true

require "objspace"

# What a block allocates.
module Rbloat
  # What a block allocated and kept, and how much of that the GC knows of: {Rbloat.probe} makes it.
  #
  # All are bytes, but `objects`. Other threads that allocate meanwhile are counted in.
  #
  # @!attribute [r] malloc_bytes
  #   @return [Integer] how much more malloc had in use after the block, with all that it made still there
  # @!attribute [r] told_bytes
  #   @return [Integer] how much of malloc's memory the GC was told of in that time: by Ruby, and by extensions
  # @!attribute [r] freed_bytes
  #   @return [Integer] how much of it was in use no more after a GC
  # @!attribute [r] objects
  #   @return [Integer] objects that were made
  # @!attribute [r] ruby_bytes
  #   @return [Integer] by how much Ruby's own objects grew (strings, arrays ...), their slots included
  # @!attribute [r] data_bytes
  #   @return [Integer] the same for objects of extensions, as these tell
  Probe = Struct.new(:malloc_bytes, :told_bytes, :freed_bytes, :objects, :ruby_bytes, :data_bytes,
                     keyword_init: true) do
    # @return [Integer] what the GC was not told of
    def unseen_bytes
      [malloc_bytes - told_bytes, 0].max
    end

    # @return [Float] how much of malloc's memory the GC was told of, 0 to 1
    def seen
      malloc_bytes.positive? ? told_bytes.fdiv(malloc_bytes).clamp(0.0, 1.0) : 1.0
    end

    # @return [Float] how much of malloc's memory a GC could free, 0 to 1
    def freed
      malloc_bytes.positive? ? freed_bytes.fdiv(malloc_bytes).clamp(0.0, 1.0) : 1.0
    end

    # @return [String] one sentence
    def verdict
      return "the block kept hardly any memory of malloc" if malloc_bytes < Probe::LITTLE

      text = "the block kept #{malloc_bytes / 1000} kB of malloc's memory: " \
             "the GC sees #{(seen * 100).round} %, and could free #{(freed * 100).round} %"
      return text if seen >= Probe::ENOUGH

      "#{text}. Extensions do not report the rest, so it piles up: release it by hand, or use Rbloat::NativePressure"
    end
    alias_method :to_s, :verdict
  end

  # Makes a {Probe}.
  class Probe
    # Below this nothing can be told.
    LITTLE = 16 * 1024
    # Headers of chunks are in use, but no part of what an extension reports.
    ENOUGH = 0.75

    class << self
      # @raise [NotImplementedError, Ractor::UnsafeError]
      # @api private
      def check_support
        raise NotImplementedError, "a probe needs glibc's malloc, not #{Rbloat.allocator}'s" unless glibc?
        raise Ractor::UnsafeError, "a probe works in the main Ractor only" unless main_ractor?
      end

      # What {Rbloat.probe} does, but for its checks.
      # @return [Probe]
      # @api private
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

      private

      def glibc?
        Rbloat.allocator == "glibc"
      end

      # ObjectSpace.count_objects_size works in no other one.
      def main_ractor?
        !defined?(Ractor) || Ractor.current == Ractor.main
      end

      # More than once because a dead object may be named by a stale word on the stack the first time. Returns whether
      # the GC was disabled before.
      def settle
        was_disabled = GC.enable
        3.times { GC.start }
        GC.disable
        was_disabled
      end

      # Its value must be on no stack afterwards.
      def run
        yield
        nil
      end

      # Overwrites what the block has left on the stack.
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

  # Runs the block and tells what it allocated and kept, how much of that the GC was told, and how much a GC can free.
  # The value of the block is dropped; what it keeps elsewhere is what cannot be freed. The GC does not run during the
  # block, and runs several times around it. What is only made once, by the first call of many, counts as well: call it
  # before.
  #
  #     puts Rbloat.probe { connection.exec(sql) }
  #
  # @return [Probe]
  # @raise [NotImplementedError] where malloc is not glibc's
  # @raise [Ractor::UnsafeError] in any Ractor but the main one
  def self.probe(&block)
    raise ArgumentError, "a probe needs a block" unless block

    Probe.check_support
    Probe.measure(&block)
  end
end
