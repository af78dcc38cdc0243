# frozen_string_literal: true

module Rbloat
  # Lets the GC know of memory that extensions take from malloc and do not report, so that it runs before such memory
  # piles up behind small dead objects: results of a database, parsed documents, images.
  #
  # A thread of the operating system, which never holds the GVL, holds what malloc has in use against what Ruby counts,
  # and tells the GC the difference as the extension should have done. Ruby's own limits then decide when to collect.
  # A program without such memory is told nothing.
  #
  # It works on in processes that are forked. With another malloc than glibc's it does nothing, and says so once.
  #
  # @!method self.stop
  #   Stops watching. Does nothing where it does not run.
  #   @return [nil]
  # @!method self.running?
  #   @return [Boolean] whether native memory is watched in this process
  # @!method self.stats
  #   @return [Hash{Symbol => Integer}] `told_bytes` in all, and `freed_bytes` of these that were given back since; how
  #     often memory was looked at, and malloc asked. Counts begin anew after a fork
  module NativePressure
    class << self
      # Starts watching in this process and in those that it forks. Does nothing where it runs already.
      # @return [Boolean] whether it runs: not with another malloc than glibc's
      def start
        return true if running?
        return true if native_start(Malloc.page_bytes)

        Malloc.say_once(NativePressure)
        false
      end
    end
    private_class_method :native_start
  end
end
