# frozen_string_literal: true

module Rbloat
  # Statistics of glibc's malloc.
  # @api private
  #
  # @!method self.counts
  #   @return [Array(Integer, Integer), nil] bytes in use and bytes free; nil with another malloc
  # @!method self.exact_in_use
  #   Returns the bytes in use. {counts} also counts free chunks in the tcache of the calling thread as in use.
  #   @return [Integer, nil] nil with another malloc
  module Malloc
    class << self
      # Bytes of a page of Ruby's heap that are not malloc's. Before Ruby 3.1 heap pages are chunks of malloc.
      def page_bytes
        RUBY_VERSION < "3.1" ? 0 : GC::INTERNAL_CONSTANTS.fetch(:HEAP_PAGE_SIZE, 64 * 1024)
      end

      # Warns once about the features that do nothing.
      def warn_once
        return if const_defined?(:WARNED, false)

        # A constant, since only the main Ractor can set variables of a module.
        const_set(:WARNED, true)
        idle = AutoTrim.running? ? "NativePressure does" : "AutoTrim and NativePressure do"
        warn "rbloat: #{idle} nothing, since #{used}, not glibc's"
      end

      # @raise [UnsupportedError] if malloc is not glibc's
      def check(feature)
        raise UnsupportedError, "#{feature} needs glibc's malloc, but #{used}" unless Rbloat.allocator == "glibc"
      end

      # Limits the number of arenas that threads get from now on, unless the environment does so.
      # @return [Boolean] true if the limit is in force
      def limit_arenas(count)
        limited = ENV.key?("MALLOC_ARENA_MAX") || ENV.fetch("GLIBC_TUNABLES", "").include?("glibc.malloc.arena_max")
        !limited && native_limit_arenas(count)
      end

      private

      def used
        name = Rbloat.allocator
        "this process uses #{name == 'other' ? 'another malloc' : "the malloc of #{name}"}"
      end
    end
  end
  private_constant :Malloc
end
