# frozen_string_literal: true

module Rbloat
  # Reports memory to the GC that extensions allocate with malloc and do not report. Without it, such memory piles up
  # behind small dead objects: database results, parsed documents, images.
  #
  # A native thread, which never holds the GVL, compares the memory that malloc has in use with the memory that Ruby
  # has counted, and reports the difference as the extension should have done. Ruby's own limits then decide when to
  # collect. Programs without unreported memory are barely affected.
  #
  # Forked processes start a thread of their own. With a malloc other than glibc's NativePressure does nothing and warns
  # once.
  #
  # @!method self.stop
  #   Stops watching. Does nothing if it is not running.
  #   @return [nil]
  # @!method self.running?
  #   @return [Boolean] true if NativePressure is running in this process
  # @!method self.stats
  #   Returns counts for this process, which start at zero after a fork: `looks` at RSS, `counts` of malloc's memory,
  #   `told_bytes` that were reported to the GC, and `freed_bytes` of these that were reported as freed.
  #   @return [Hash{Symbol => Integer}]
  module NativePressure
    class << self
      # Starts watching in this process and in the processes that it forks. Does nothing if it is already running.
      # @return [Boolean] true if NativePressure is running; false if malloc is not glibc's
      def start
        return true if running?
        return true if native_start(Malloc.page_bytes)

        Malloc.warn_once
        false
      end
    end
    private_class_method :native_start
  end
end
