# frozen_string_literal: true

require_relative "cgroup"

module Rbloat
  # Returns free memory of malloc to the kernel when the saving is worth the cost.
  #
  # A native thread, which never holds the GVL, checks after each sweep of the GC and while the process is idle how much
  # memory a trim would return. If it is enough, the thread calls malloc_trim. The cost of trims, including the page
  # faults that follow them, stays below a fixed share of the time. Near the memory limit of the control group the share
  # is larger.
  #
  # Forked processes start a thread of their own. With a malloc other than glibc's (jemalloc, tcmalloc, musl) AutoTrim
  # does nothing and warns once.
  #
  # @!method self.stop
  #   Stops trimming. Does nothing if it is not running.
  #   @return [nil]
  # @!method self.running?
  #   @return [Boolean] true if AutoTrim is running in this process
  # @!method self.quiet!
  #   Announces that the process is idle, so this is a good time for a trim. Returns at once.
  #   @return [nil]
  # @!method self.stats
  #   @return [Hash{Symbol => Numeric}] counts and sizes (in bytes) for this process; they start at zero after a fork
  module AutoTrim
    # The share of the time that trimming may cost in the long run.
    SHARE = 0.01
    # A trim must return at least this many bytes (8 MiB),
    LEAST_BYTES = 8 * 1024 * 1024
    # and at least this share of RSS.
    LEAST_OF_RSS = 0.05
    # Above this share of the memory limit, avoiding the limit is more important than speed.
    PRESSURE = 0.85

    class << self
      # Starts trimming in this process and in the processes that it forks. Does nothing if it is already running.
      #
      # @param share [Float] the share of the time that trimming may cost in the long run
      # @param least_bytes [Integer] the bytes that a trim must return to be worth it
      # @param cgroup [Cgroup, nil] the control group whose memory limit counts
      # @param pressure [Float] the share of the limit above which trims do not wait for the budget
      # @return [Boolean] true if AutoTrim is running; false if malloc is not glibc's
      def start(share: SHARE, least_bytes: LEAST_BYTES, cgroup: Cgroup.find, pressure: PRESSURE)
        raise ArgumentError, "share must be above 0 and at most 1, got #{share}" unless share.positive? && share <= 1
        raise ArgumentError, "pressure must be above 0, got #{pressure}" unless pressure.positive?
        return true if running?

        return true if native_start(share, least_bytes, LEAST_OF_RSS, Malloc.page_bytes, pressure, cgroup&.to_a)

        Malloc.warn_once(AutoTrim)
        false
      end

      # Prepares memory to be shared with workers that are about to be forked. Calls Process.warmup (Ruby 3.3 and
      # later), which compacts and trims. Earlier Rubies get a full GC and a trim.
      # @return [nil]
      def prepare_fork
        if Process.respond_to?(:warmup)
          Process.warmup
        else
          GC.start
          Rbloat.trim
        end
        nil
      end
    end
    private_class_method :native_start
  end
end
