# frozen_string_literal: true

module Rbloat
  # The figures of {Rbloat.stats}, as systems of metrics want them: each is a counter or a gauge, with a sentence.
  # @api private
  module Metrics
    # Only grow, and start at zero in a forked process.
    COUNTERS = {
      auto_trim_trims: "Trims by AutoTrim.",
      auto_trim_useless_trims: "Trims whose memory the program soon used again.",
      auto_trim_trims_under_pressure: "Trims while the memory limit was near.",
      auto_trim_returned_bytes: "Bytes that trims returned to the kernel.",
      auto_trim_trim_seconds: "Processor time of trims.",
      auto_trim_looks: "Looks at the free memory of malloc.",
      auto_trim_look_seconds: "Processor time of looks.",
      native_pressure_looks: "Looks at RSS by NativePressure.",
      native_pressure_counts: "Counts of the memory that malloc has in use.",
      native_pressure_told_bytes: "Bytes of native memory that the GC was told of.",
      native_pressure_freed_bytes: "Bytes of these that were reported as freed."
    }.freeze
    GAUGES = {
      rss_bytes: "Resident memory of the process.",
      auto_trim_last_returned_bytes: "Bytes that the last trim returned.",
      auto_trim_expected_bytes: "Bytes that a trim would return, at the last look.",
      auto_trim_longest_trim_seconds: "Processor time of the longest trim.",
      auto_trim_credit_seconds: "Processor time that trims may take now.",
      auto_trim_fault_seconds: "Estimated cost of a page that the program uses again.",
      auto_trim_comeback: "Share of the returned memory that the program soon used again."
    }.freeze

    # The growth of counters since the last reading.
    class Growth
      def initialize
        @last = {}
        @pid = Process.pid
      end

      # @return [Numeric] how much the counter grew: all of it after a fork, which sets it to zero
      def of(name, value)
        @last.clear if @pid != Process.pid
        @pid = Process.pid
        grown = value - @last.fetch(name, 0)
        @last[name] = value
        [grown, 0].max
      end
    end

    # @yieldparam name [Symbol]
    # @yieldparam help [String]
    # @yieldparam counter [Boolean]
    def self.each
      GAUGES.each { |name, help| yield name, help, false }
      COUNTERS.each { |name, help| yield name, help, true }
    end

    def self.counter?(name)
      COUNTERS.key?(name)
    end
  end
  private_constant :Metrics
end
