# frozen_string_literal: true

require_relative "cgroup"

module Rbloat
  # Gives memory that malloc holds on to back to the kernel, when that is worth it.
  #
  # A thread of the operating system, which never holds the GVL, looks after the sweep of the GC and in quiet times how
  # much could be given back, and calls malloc_trim. What that costs, with the page faults that follow, stays below a
  # share of the time. Near the memory limit of the control group that share is larger.
  #
  # It works on in processes that are forked. With another malloc than glibc's (jemalloc, tcmalloc, musl's) it does
  # nothing, and says so once.
  #
  # @!method self.stop
  #   Stops trimming. Does nothing where it does not run.
  #   @return [nil]
  # @!method self.running?
  #   @return [Boolean] whether memory is trimmed automatically in this process
  # @!method self.quiet!
  #   Tells that nothing is being worked on right now, so that this is a good time for a trim. Returns at once.
  #   @return [nil]
  # @!method self.stats
  #   @return [Hash{Symbol => Numeric}] what was done in this process so far; counts begin anew after a fork
  module AutoTrim
    # The share of the time that trimming may cost, in the long run.
    SHARE = 0.01
    # What is worth a trim: at least so many bytes,
    LEAST_BYTES = 8 * 1024 * 1024
    # and at least this share of RSS.
    LEAST_OF_RSS = 0.05
    # From this share of the memory limit on, survival beats speed.
    PRESSURE = 0.85

    class << self
      # Starts trimming in this process and in those that it forks. Does nothing where it runs already.
      #
      # @param share [Float] the share of the time that trimming may cost, in the long run
      # @param least_bytes [Integer] a trim must bring at least so many bytes
      # @param cgroup [Cgroup, nil] whose limit is to be kept to
      # @param pressure [Float] from this share of the limit on survival beats speed
      # @return [Boolean] whether it runs: not with another malloc than glibc's
      def start(share: SHARE, least_bytes: LEAST_BYTES, cgroup: Cgroup.find, pressure: PRESSURE)
        raise ArgumentError, "share must be above 0 and at most 1, is #{share}" unless share.positive? && share <= 1
        raise ArgumentError, "pressure must be above 0, is #{pressure}" unless pressure.positive?
        return true if running?

        return true if native_start(share, least_bytes, LEAST_OF_RSS, Malloc.page_bytes, pressure, cgroup&.to_a)

        Malloc.say_once(AutoTrim)
        false
      end

      # What is best done before a process forks workers that are to share its memory: Process.warmup where Ruby has
      # it (3.3 and later), which compacts and trims; else a full GC and a trim.
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
