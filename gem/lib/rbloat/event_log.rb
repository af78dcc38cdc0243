# frozen_string_literal: true

module Rbloat
  # Writes lines about trims, a near memory limit, and the growth by requests to a logger, at limited rates.
  # @api private
  class EventLog
    # Seconds between two lines about trims, or about the limit, at least,
    PERIOD = 60.0
    # and between two about the growth by requests, while the limit is not near.
    GROWTH_PERIOD = 3600.0

    def initialize(configuration)
      @configuration = configuration
      @unlogged = { returned_bytes: 0, trims: 0, seconds: 0.0 }
      @logged_at = { growth: now }
    end

    # Adds the trims of an event, and logs those since the last line if they returned enough memory.
    def trims(event)
      @unlogged.each_key { |name| @unlogged[name] += event[name] }
      rss = event[:rss_bytes]
      return if @unlogged[:returned_bytes] < AutoTrim::LEAST_OF_RSS * rss || !due?(:trims, PERIOD)

      trims = @unlogged[:trims] == 1 ? "1 trim" : "#{@unlogged[:trims]} trims"
      write(:info, "returned #{Units.binary(@unlogged[:returned_bytes])} to the kernel in #{trims} " \
                   "(#{(@unlogged[:seconds] * 1000).round} ms); RSS is #{Units.binary(rss)}")
      @unlogged.each_key { |name| @unlogged[name] = 0 }
    end

    def pressure(event)
      return unless due?(:pressure, PERIOD)

      write(:warn, "the memory limit is near: #{Units.binary(event[:used_bytes])} of " \
                   "#{Units.binary(event[:limit_bytes])} are in use")
      @logged_at[:growth] = now
      write_growth
    end

    def growth
      write_growth if due?(:growth, GROWTH_PERIOD)
    end

    def write(level, text)
      @configuration.logger&.public_send(level, "rbloat: #{text}")
    end

    private

    def write_growth
      rows = Rbloat.growth.select { |row| row[:rss_bytes].positive? }.map do |row|
        "#{row[:name]} (#{row[:requests]} times, #{Units.binary(row[:rss_bytes])} on average)"
      end
      write(:info, "RSS grew most in: #{rows.join(', ')}") if rows.any?
    end

    # Returns false if there was such a line less than a period ago.
    def due?(kind, period)
      return false if @logged_at[kind] && now < @logged_at[kind] + period

      @logged_at[kind] = now
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
  private_constant :EventLog
end
