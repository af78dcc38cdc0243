# frozen_string_literal: true

require_relative "test_helper"

# The notifications of trims, and of a memory limit that is near.
class NotifierTest < Minitest::Test
  # A logger that collects lines.
  LOGGER = <<~'RUBY'
    require "logger"
    require "stringio"
    LOG = StringIO.new
    Rbloat.configuration.logger = Logger.new(LOG, formatter: ->(level, *, text) { "#{level} #{text}\n" })
  RUBY
  # Collects events.
  EVENTS = <<~'RUBY'
    require "active_support"
    require "active_support/notifications"
    EVENTS = Queue.new
    ActiveSupport::Notifications.subscribe(/rbloat\z/) { |name, *, payload| EVENTS << [name, payload] }
  RUBY

  def test_a_trim_is_published_and_logged
    needs "active_support"
    event, more, log, trims = run_ruby(<<~RUBY)
      #{LOGGER}
      #{EVENTS}
      Rbloat.start
      burst
      wait_until { Rbloat::AutoTrim.stats[:trims].positive? }
      event = EVENTS.pop
      Rbloat.stop
      [event, EVENTS.size, LOG.string, Rbloat::AutoTrim.stats[:trims]]
    RUBY
    assert_equal "trim.rbloat", event[0]
    assert_operator event[1]["returned_bytes"], :>, 8 << 20
    assert_includes 1..trims, event[1]["trims"]
    assert_equal 1 + more, log.lines.size, log
    assert_match(/\AINFO rbloat: returned [\d.]+ MiB to the kernel in \d+ trims? \(\d+ ms\); RSS is [\d.]+ MiB$/, log)
  end

  # Reads the group each 10 ms.
  NEAR_LIMIT = <<~'RUBY'
    def use(bytes)
      File.write("#{FOLDER}/memory.current", bytes.to_s)
    end

    def wait_for_passes
      seen = $reads
      wait_until { $reads > seen + 2 }
    end

    notifier = Rbloat.const_get(:Notifier)
    notifier.__send__(:remove_const, :PERIOD)
    notifier.const_set(:PERIOD, 0.01)
    $reads = 0
    group = Rbloat::Cgroup.new(limit: 1_000, usage: "#{FOLDER}/memory.current")
    group.define_singleton_method(:used_bytes) { super().tap { $reads += 1 } }
    Rbloat::Cgroup.define_singleton_method(:find) { group }
  RUBY

  def test_a_near_limit_is_published_once_until_it_is_far_again
    needs "active_support"
    Dir.mktmpdir do |folder|
      events, log = run_ruby(<<~RUBY)
        FOLDER = "#{folder}"
        #{LOGGER}
        #{EVENTS}
        #{NEAR_LIMIT}
        use(900)
        Rbloat.start
        wait_for_passes
        [100, 990].each { |bytes| use(bytes); wait_for_passes }
        Rbloat.stop
        [Array.new(EVENTS.size) { EVENTS.pop }.select { |name, _| name == "pressure.rbloat" }, LOG.string]
      RUBY
      assert_equal [900, 990], (events.map { |_name, payload| payload["used_bytes"] })
      # The second line would come less than a minute after the first.
      assert_equal ["WARN rbloat: the memory limit is near: 900 B of 1000 B are in use\n"], log.lines.grep(/limit/)
    end
  end

  def test_a_subscriber_that_raises_does_not_end_the_notifications
    needs "active_support"
    log, alive = run_ruby(<<~RUBY)
      #{LOGGER}
      #{EVENTS}
      ActiveSupport::Notifications.subscribe("trim.rbloat") { raise "no" }
      Rbloat.start
      burst
      wait_until { LOG.string.include?("subscriber") }
      [LOG.string, Thread.list.any? { |thread| thread.name == "rbloat-notifier" }]
    RUBY
    assert_includes log, "ERROR rbloat: a subscriber of trim.rbloat failed"
    assert alive
  end

  # The thread was killed, even within a subscriber or a logger.
  def test_a_stop_waits_for_a_subscriber
    assert_equal [true, true], stop_during("true")
  end

  # Each waited for the other.
  def test_a_subscriber_may_stop_what_another_thread_stops
    assert_equal [true, true], stop_during("Rbloat.stop")
  end

  # Stops everything while a subscriber is at work, which ends with this code. Returns whether the subscriber finished,
  # and whether the trim is in the log.
  def stop_during(code)
    needs "active_support"
    run_ruby(<<~RUBY)
      #{LOGGER}
      require "active_support"
      require "active_support/notifications"
      called = Queue.new
      go = Queue.new
      finished = false
      ActiveSupport::Notifications.subscribe("trim.rbloat") { called << true; go.pop; #{code}; finished = true }
      Rbloat.start
      burst
      called.pop
      stop = Thread.new { Rbloat.stop }
      wait_until { stop.stop? }
      go << true
      stop.join
      [finished, LOG.string.include?("returned")]
    RUBY
  end

  # It ended the thread of the notifications, so the rest of Rbloat.stop never ran.
  def test_a_subscriber_may_stop_everything
    needs "active_support"
    assert_equal [false, 0], run_ruby(<<~RUBY)
      #{EVENTS}
      stopped = Queue.new
      ActiveSupport::Notifications.subscribe("trim.rbloat") { stopped << Rbloat.stop }
      Rbloat.start
      burst
      stopped.pop
      threads = -> { Thread.list.count { |thread| thread.name == "rbloat-notifier" } }
      wait_until { threads.().zero? }
      [Rbloat::AutoTrim.running?, threads.()]
    RUBY
  end

  def test_a_forked_process_is_notified_too
    skip "Process._fork came with Ruby 3.1" unless Process.respond_to?(:_fork)
    needs "logger"
    assert_equal [1, 0], run_ruby(<<~RUBY)
      #{LOGGER}
      threads = -> { Thread.list.count { |thread| thread.name == "rbloat-notifier" } }
      Rbloat.start
      Process.wait(fork { exit!(threads.()) })
      Rbloat.stop
      [$?.exitstatus, threads.()]
    RUBY
  end

  def test_nobody_to_be_notified_needs_no_thread
    assert_equal 1, run_ruby("Rbloat.start; Thread.list.size")
  end
end
