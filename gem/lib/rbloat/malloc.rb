# frozen_string_literal: true

module Rbloat
  # Statistics of glibc's malloc.
  #
  # @!method self.counts
  #   @return [Array(Integer, Integer), nil] bytes in use and bytes free; nil with another malloc
  # @!method self.exact_in_use
  #   Returns the bytes in use. {counts} also counts free chunks in the tcache of the calling thread as in use.
  #   @return [Integer, nil] nil with another malloc
  module Malloc
    class << self
      # Bytes of a page of Ruby's heap that are not malloc's. Before Ruby 3.1 heap pages are chunks of malloc.
      # @api private
      def page_bytes
        RUBY_VERSION < "3.1" ? 0 : GC::INTERNAL_CONSTANTS.fetch(:HEAP_PAGE_SIZE, 64 * 1024)
      end

      # Warns that a feature needs glibc's malloc, once for each feature.
      # @api private
      def warn_once(feature)
        return if feature.const_defined?(:WARNED, false)

        # A constant, since only the main Ractor can set variables of a module.
        feature.const_set(:WARNED, true)
        feature.private_constant :WARNED
        warn "rbloat: #{feature.name[/\w+\z/]} is off: it needs glibc's malloc, but this process uses " \
             "#{Rbloat.allocator}'s"
      end
    end
  end
end
