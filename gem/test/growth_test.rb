# frozen_string_literal: true

require_relative "test_helper"

# Growth by controller action and job class.
class GrowthTest < Minitest::Test
  def growth(**options)
    Rbloat.const_get(:Growth).new(**options)
  end

  # In a process of its own, without GC. In this one the garbage of other tests might be freed during a request, and
  # malloc might give requests memory that is resident since other tests freed it.
  def test_what_retains_memory_is_at_the_top
    # Measuring costs nothing, so each request is measured.
    rows, first = run_ruby(<<~RUBY)
      GC.disable
      table = Rbloat.const_get(:Growth).new(clock: -> { 0.0 }, cpu_clock: -> { 0.0 })
      kept = []
      # The kernel adds some pages to RSS late, up to 64 for each processor, so that a later request seems to take them.
      # Strings of 3 MB are far more.
      30.times do
        table.measure("light") { nil }
        table.measure("heavy") { kept << ("x" * 3_000_000) }
      end
      [table.top(20), table.top(1)]
    RUBY
    heavy, light = rows
    assert_equal %w[heavy light], [heavy["name"], light["name"]]
    assert_equal [30, 30], [heavy["requests"], heavy["samples"]]
    assert_operator heavy["rss_bytes"], :>, 2_000_000
    assert_includes 1..20, heavy["objects"]
    assert_operator heavy["malloc_bytes"], :>, 2_000_000 if glibc?
    assert_equal [heavy], first
  end

  # The clock advances by 10 ms each time that it is read, and by `pause` between requests.
  def samples(pause)
    time = 0.0
    table = growth(clock: -> { time += 0.01 })
    1_000.times do
      time += pause
      table.measure("a") { nil }
    end
    table.top(1).first.values_at(:requests, :samples)
  end

  def test_measuring_takes_its_share_of_the_time_at_most
    # A sample reads figures twice, 10 ms each, which is the share of 4 s.
    requests, samples = samples(0.4)
    assert_equal 1_000, requests
    assert_includes 95..110, samples
    assert_equal [1_000, 1_000], samples(4.1)
  end

  def test_idle_time_gives_little_credit
    time = 0.0
    table = growth(clock: -> { time += 0.01 })
    time += 1_000_000
    100.times { table.measure("a") { nil } }
    # The credit is 0.1 s, and each sample takes 0.02 s.
    assert_includes 5..7, table.top(1).first[:samples]
  end

  # Measures requests with a CPU clock that advances by `step` seconds each time that it is read. Returns the growth of
  # malloc's memory, and how often the clock was read.
  def counts_of_malloc(step, requests)
    reads = 0
    table = growth(cpu_clock: -> { (reads += 1) * step })
    table.instance_variable_set(:@since, -1e9)
    requests.times { table.measure("a") { nil } }
    [table.top(1).first[:malloc_bytes], reads]
  end

  def test_malloc_is_not_counted_again_after_a_count_that_took_long
    skip "malloc is not glibc's" unless glibc?
    bytes, reads = counts_of_malloc(0.001, 3)
    assert_kind_of Integer, bytes
    assert_equal 12, reads
    assert_equal [nil, 2], counts_of_malloc(0.003, 3)
  end

  def test_an_error_passes_and_the_request_counts
    table = growth
    assert_raises(IOError) { table.measure("a") { raise IOError } }
    assert_equal 1, table.top(1).first[:samples]
  end

  def test_names_are_limited
    table = growth(clock: -> { 0.0 })
    1_100.times { |index| table.measure(index.to_s) { nil } }
    assert_equal 1_000, table.top(2_000).size
  end

  def test_actions_of_controllers
    needs "action_controller"
    names, off = run_ruby(<<~RUBY)
      require "action_controller"
      request = -> { ActiveSupport::Notifications.instrument("process_action.action_controller", controller: "A", action: "b") }
      Rbloat.configuration.growth = true
      Rbloat.start
      3.times { request.call }
      Rbloat.stop
      request.call
      seen = Rbloat.growth.map { |row| row.values_at(:name, :requests) }
      Process.wait(fork { exit!(Rbloat.growth.size) })
      [seen, $?.exitstatus]
    RUBY
    assert_equal [["A#b", 3]], names
    assert_equal RUBY_VERSION < "3.1" ? 1 : 0, off
  end

  def test_the_log_names_requests_when_the_limit_is_near
    needs "logger"
    log = run_ruby(<<~RUBY)
      require "logger"
      require "stringio"
      output = StringIO.new
      Rbloat.configuration.logger = Logger.new(output)
      Rbloat.configuration.growth = true
      events = Rbloat.const_get(:EventLog).new(Rbloat.configuration)
      kept = nil
      Rbloat.__send__(:measure_growth, "OrdersController#index") { kept = "x" * 10_000_000 }
      events.pressure({ used_bytes: 900, limit_bytes: 1_000 })
      output.string
    RUBY
    assert_match(/RSS grew most in: OrdersController#index \(1 times, (9|10)\.\d MiB on average\)$/, log)
  end
end
