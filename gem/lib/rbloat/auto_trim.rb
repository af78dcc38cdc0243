# frozen_string_literal: true

require_relative "cgroup"

module Rbloat
  # Returns free memory of malloc to the kernel when the saving is worth the cost.
  #
  # A native thread, which never holds the GVL, checks after each sweep of the GC and while the process is idle how much
  # memory a trim would return. If it is enough, the thread calls malloc_trim. It budgets a fixed share of the program's
  # CPU time, and of idle time, for trims and the page faults that follow them. Near the memory limit of the control
  # group the share is larger.
  #
  # It also limits the number of malloc's arenas to one. Threads cannot use the free memory of another thread's arena,
  # and with the GVL they rarely call malloc at the same time.
  #
  # Under jemalloc it switches on jemalloc's background thread, which returns the free memory of all arenas a while
  # after it became free. With other allocators (tcmalloc, mimalloc, musl) it does nothing and warns once.
  #
  # Forked processes start a thread of their own.
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
    # The share of the program's CPU time, and of idle time, that is the budget for trims in the long run.
    SHARE = 0.01
    # A trim must return at least this many bytes (8 MiB),
    LEAST_BYTES = 8 * 1024 * 1024
    # and at least this share of RSS.
    LEAST_OF_RSS = 0.05
    # Above this share of the memory limit, avoiding the limit is more important than speed.
    PRESSURE = 0.85
    # The number of malloc's arenas.
    ARENAS = 1

    class << self
      # Starts trimming in this process and in the processes that it forks. Does nothing if it is already running.
      #
      # @param share [Float] the share of the CPU time, and of idle time, that trimming may cost in the long run
      # @param least_bytes [Integer] the bytes that a trim must return to be worth it
      # @param cgroup [Cgroup, nil] the control group whose memory limit counts
      # @param pressure [Float] the share of the limit above which trims do not wait for the budget
      # @param arenas [Integer, nil] the number of malloc's arenas, for threads that have none yet; nil for no limit.
      #   The variables MALLOC_ARENA_MAX and GLIBC_TUNABLES override it. The limit stays in force after {stop}
      # @return [Boolean] true if AutoTrim is running; false if malloc is neither glibc's nor jemalloc's
      def start(share: SHARE, least_bytes: LEAST_BYTES, cgroup: Cgroup.find, pressure: PRESSURE, arenas: ARENAS)
        check("share", share, "above 0 and at most 1") { share.positive? && share <= 1 }
        check("pressure", pressure, "above 0", &:positive?)
        check("arenas", arenas, "nil or at least 1") { arenas.nil? || arenas.positive? }
        return true if running?

        Malloc.limit_arenas(arenas) if arenas
        return true if native_start(share, least_bytes, LEAST_OF_RSS, Malloc.page_bytes, pressure, cgroup&.to_a)

        Malloc.warn_once
        false
      end

      # Prepares memory to be shared with workers that are about to be forked: runs the GC, and trims.
      #
      # @param warmup [Boolean] true to call Process.warmup instead, which Ruby 3.3 and later have. It also compacts the
      #   heap, so that workers copy fewer pages. An extension that does not support compaction may crash then
      # @return [nil]
      def prepare_fork(warmup: false)
        if warmup && Process.respond_to?(:warmup)
          Process.warmup
        else
          GC.start
          Rbloat.trim
        end
        nil
      end

      private

      def check(name, value, range)
        raise ArgumentError, "#{name} must be #{range}, got #{value}" unless yield(value)
      end
    end
    private_class_method :native_start
  end
end
