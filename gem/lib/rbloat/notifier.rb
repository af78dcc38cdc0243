# frozen_string_literal: true

module Rbloat
  # Publishes trims and a memory limit that is near: to ActiveSupport::Notifications as `trim.rbloat` and
  # `pressure.rbloat`, and to a logger. A Ruby thread compares the counts of AutoTrim once a second, since the native
  # thread never holds the GVL.
  # @api private
  class Notifier
    # Seconds between two comparisons.
    PERIOD = 1.0
    # Seconds between two lines in the log about trims, at least, and between two about the growth by requests.
    LOG_PERIOD = 60.0
    GROWTH_PERIOD = 3600.0
    # The limit stays near until less than this part of the threshold is in use.
    CLOSE = 0.95

    @lock = Mutex.new

    class << self
      # Starts the thread, or changes its configuration. Does nothing if nobody is there to be notified.
      def start(configuration)
        return unless configuration.logger || defined?(ActiveSupport::Notifications)

        @lock.synchronize do
          @notifier ||= new(configuration)
          @notifier.run
        end
      end

      def stop
        @lock.synchronize do
          @notifier&.stop
          @notifier = nil
        end
      end

      # Restarts the thread in a forked process, which has none.
      def resume
        @lock = Mutex.new
        @notifier&.run
      end
    end

    def initialize(configuration)
      @configuration = configuration
      @group = Cgroup.find
    end

    def run
      return if @thread&.alive?

      @last = AutoTrim.stats
      @unlogged = { returned_bytes: 0, trims: 0, seconds: 0.0 }
      @logged_at = -LOG_PERIOD
      @growth_logged_at = now
      @near = false
      @thread = Thread.new { notify while sleep(PERIOD) }
      @thread.name = "rbloat-notifier"
      # Puma warns about threads that run before it forks. This one is restarted in workers.
      @thread.thread_variable_set(:fork_safe, true)
      @thread.report_on_exception = true
    end

    def stop
      @thread&.kill
      @thread&.join
    end

    private

    def notify
      notify_of_trims(AutoTrim.stats)
      notify_of_pressure
      log_growth if now >= @growth_logged_at + GROWTH_PERIOD
    rescue StandardError => e # of a logger; it must not end the notifications
      warn "rbloat: a notification failed: #{e.message} (#{e.class})"
    end

    def log_growth
      @growth_logged_at = now
      rows = Rbloat.growth.map do |row|
        next unless row[:rss_bytes].positive?

        "#{row[:name]} (#{row[:requests]} times, #{Units.binary(row[:rss_bytes])} on average)"
      end
      log(:info, "RSS grew most in: #{rows.compact.join(', ')}") if rows.any?
    end

    def notify_of_trims(now)
      grown = ->(name) { now.fetch(name, 0) - @last.fetch(name, 0) }
      event = { returned_bytes: grown[:returned_bytes], trims: grown[:trims], seconds: grown[:trim_seconds],
                under_pressure: grown[:trims_under_pressure].positive?, rss_bytes: Rbloat.rss_bytes }
      @last = now
      return unless event[:trims].positive?

      publish("trim.rbloat", event)
      @unlogged.each_key { |name| @unlogged[name] += event[name] }
      log_trims(event[:rss_bytes])
    end

    def log_trims(rss)
      return if @unlogged[:returned_bytes] < AutoTrim::LEAST_OF_RSS * rss || now < @logged_at + LOG_PERIOD

      trims = @unlogged[:trims] == 1 ? "1 trim" : "#{@unlogged[:trims]} trims"
      log(:info, "returned #{Units.binary(@unlogged[:returned_bytes])} to the kernel in #{trims} " \
                 "(#{(@unlogged[:seconds] * 1000).round} ms); RSS is #{Units.binary(rss)}")
      @unlogged.each_key { |name| @unlogged[name] = 0 }
      @logged_at = now
    end

    # Notifies each time that the limit comes near, and not while it stays near.
    def notify_of_pressure
      used = @group&.used_bytes or return
      was_near = @near
      # AutoTrim keeps the use around the threshold.
      @near = used >= @configuration.pressure * @group.limit * (was_near ? CLOSE : 1)
      return if was_near || !@near

      publish("pressure.rbloat", { used_bytes: used, limit_bytes: @group.limit, rss_bytes: Rbloat.rss_bytes })
      log(:warn, "the memory limit is near: #{Units.binary(used)} of #{Units.binary(@group.limit)} " \
                 "are in use")
      log_growth
    end

    # An error of a subscriber must not end the notifications.
    def publish(name, payload)
      ActiveSupport::Notifications.instrument(name, payload) if defined?(ActiveSupport::Notifications)
    rescue StandardError => e
      log(:error, "a subscriber of #{name} failed: #{e.message} (#{e.class})")
    end

    def log(level, text)
      @configuration.logger&.public_send(level, "rbloat: #{text}")
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
  private_constant :Notifier
end
