# frozen_string_literal: true

require_relative "event_log"

module Rbloat
  # Publishes trims and a memory limit that is near: to ActiveSupport::Notifications as `trim.rbloat` and
  # `pressure.rbloat`, and to a logger. A Ruby thread compares the counts of AutoTrim once a second, since the native
  # thread never holds the GVL.
  # @api private
  class Notifier
    # Seconds between two comparisons.
    PERIOD = 1.0
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

      # Does not hold the lock while it waits for a subscriber, which may call this as well.
      def stop
        notifier = @lock.synchronize { @notifier.tap { @notifier = nil } }
        notifier&.stop
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
      @log = EventLog.new(@configuration)
      @near = false
      @stopped = false
      # In a forked process those of the parent may be in use.
      @mutex = Mutex.new
      @stop = ConditionVariable.new
      @thread = Thread.new { notify while wait_for_next }
      @thread.name = "rbloat-notifier"
      # Puma warns about threads that run before it forks. This one is restarted in workers.
      @thread.thread_variable_set(:fork_safe, true)
      @thread.report_on_exception = true
    end

    # Ends the thread after the notification that it is publishing: a subscriber or a logger is not interrupted.
    def stop
      @mutex.synchronize do
        @stopped = true
        @stop.signal
      end
      # A subscriber or a logger may call Rbloat.stop, which has more to do after this.
      @thread.join unless Thread.current == @thread
    end

    private

    # Waits until the next comparison is due. Returns false if there is none.
    def wait_for_next
      @mutex.synchronize do
        @stop.wait(@mutex, PERIOD) unless @stopped
        !@stopped
      end
    end

    def notify
      notify_of_trims(AutoTrim.stats)
      notify_of_pressure
      @log.growth
    rescue StandardError => e # of a logger; it must not end the notifications
      warn "rbloat: a notification failed: #{e.message} (#{e.class})"
    end

    def notify_of_trims(now)
      grown = ->(name) { now.fetch(name, 0) - @last.fetch(name, 0) }
      event = { returned_bytes: grown[:returned_bytes], trims: grown[:trims], seconds: grown[:trim_seconds],
                under_pressure: grown[:trims_under_pressure].positive?, rss_bytes: Rbloat.rss_bytes }
      @last = now
      return unless event[:trims].positive?

      publish("trim.rbloat", event)
      @log.trims(event)
    end

    # Notifies each time that the limit comes near, and not while it stays near.
    def notify_of_pressure
      used = @group&.used_bytes or return
      was_near = @near
      # AutoTrim keeps the use around the threshold.
      @near = used >= @configuration.pressure * @group.limit * (was_near ? CLOSE : 1)
      return if was_near || !@near

      event = { used_bytes: used, limit_bytes: @group.limit, rss_bytes: Rbloat.rss_bytes }
      publish("pressure.rbloat", event)
      @log.pressure(event)
    end

    # An error of a subscriber must not end the notifications.
    def publish(name, payload)
      ActiveSupport::Notifications.instrument(name, payload) if defined?(ActiveSupport::Notifications)
    rescue StandardError => e
      @log.write(:error, "a subscriber of #{name} failed: #{e.message} (#{e.class})")
    end
  end
  private_constant :Notifier
end
