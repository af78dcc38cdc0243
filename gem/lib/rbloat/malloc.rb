# frozen_string_literal: true

module Rbloat
  # What glibc's malloc tells of itself.
  #
  # @!method self.counts
  #   @return [Array(Integer, Integer), nil] bytes in use and bytes free; nil with another malloc
  # @!method self.exact_in_use
  #   Bytes in use, those that are free in a cache of the calling thread left out.
  #   @return [Integer, nil] nil with another malloc
  module Malloc
    class << self
      # Bytes of a page of Ruby's heap that lie outside of malloc. Before Ruby 3.1 they are chunks of malloc, and
      # counted there.
      # @api private
      def page_bytes
        RUBY_VERSION < "3.1" ? 0 : GC::INTERNAL_CONSTANTS.fetch(:HEAP_PAGE_SIZE, 64 * 1024)
      end

      # Warns that a feature is for glibc's malloc only.
      # @api private
      def say_once(feature)
        return if feature.const_defined?(:TOLD, false)

        # A constant, since only the main Ractor can set a module's variables.
        feature.const_set(:TOLD, true)
        feature.private_constant :TOLD
        warn "rbloat: malloc is #{Rbloat.allocator}'s here, not glibc's: #{feature.name[/\w+\z/]} has nothing to do"
      end
    end
  end
end
