# frozen_string_literal: true

require_relative "test_helper"

# The adapters for metrics, with the real gems where they are installed.
class AdaptersTest < Minitest::Test
  def test_each_figure_is_a_counter_or_a_gauge
    assert_empty run_ruby(<<~RUBY)
      metrics = Rbloat.const_get(:Metrics)
      known = metrics::COUNTERS.keys + metrics::GAUGES.keys
      (Rbloat.stats.keys - known) + (known - Rbloat.stats.keys)
    RUBY
  end

  def test_prometheus
    needs "prometheus/client"
    text = run_ruby(<<~RUBY)
      require "rbloat/prometheus"
      require "prometheus/client/formats/text"
      metrics = Rbloat::PrometheusAdapter.new
      Rbloat::AutoTrim.start
      burst
      wait_until { Rbloat::AutoTrim.quiet!; Rbloat.stats[:auto_trim_looks].positive? }
      2.times { metrics.update }
      [Prometheus::Client::Formats::Text.marshal(Prometheus::Client.registry), Rbloat.stats[:auto_trim_looks]]
    RUBY
    text, looks = text
    assert_match(/^rbloat_rss_bytes [1-9]\d{6,}/, text)
    assert_match(/^# TYPE rbloat_auto_trim_looks_total counter$/, text)
    assert_match(/^# HELP rbloat_rss_bytes Resident memory of the process\.$/, text)
    # A counter that is read twice is not twice as large.
    assert_includes 1..looks, text[/^rbloat_auto_trim_looks_total (\d+)/, 1].to_i
  end

  def test_counters_begin_anew_in_a_forked_process
    assert_equal [5, 2, 3, 0], run_ruby(<<~RUBY)
      growth = Rbloat.const_get(:Metrics)::Growth.new
      grown = [growth.of(:looks, 5), growth.of(:looks, 7)]
      reader, writer = IO.pipe
      Process.wait(fork { writer.puts growth.of(:looks, 3); exit!(0) })
      [*grown, reader.gets.to_i, growth.of(:looks, 7)]
    RUBY
  end

  def test_statsd
    needs "statsd"
    server = UDPSocket.new
    server.bind("127.0.0.1", 0)
    run_ruby(<<~RUBY)
      require "rbloat/statsd"
      require "statsd"
      Rbloat::AutoTrim.start
      burst
      wait_until { Rbloat::AutoTrim.quiet!; Rbloat.stats[:auto_trim_looks].positive? }
      Rbloat::StatsdAdapter.new(Statsd.new("127.0.0.1", #{server.addr[1]})).update
      nil
    RUBY
    packets = []
    packets << server.recvfrom_nonblock(1_000).first while server.wait_readable(0)
    assert_match(/\Arbloat\.rss_bytes:[1-9]\d{6,}\|g\z/, packets.first)
    assert(packets.any? { |packet| packet.match?(/\Arbloat\.auto_trim_looks:[1-9]\d*\|c\z/) }, packets.inspect)
  ensure
    server&.close
  end

  def test_yabeda
    needs "yabeda"
    assert_operator run_ruby(<<~RUBY), :>, 1_000_000
      require "rbloat/yabeda"
      Yabeda.configure!
      2.times { Yabeda.collectors.each(&:call) }
      Yabeda.rbloat.rss_bytes.get({})
    RUBY
  end

  # The part of Yabeda's API that the adapter calls (https://github.com/yabeda-rb/yabeda): no registry here has the gem.
  YABEDA = <<~'RUBY'
    module Yabeda
      METRICS = {}
      Metric = Struct.new(:kind, :comment, :value) do
        def set(tags, value); tags.empty? or raise; self.value = value; end
        def increment(tags, by: 1); tags.empty? or raise; self.value = (value || 0) + by; end
      end
      class Group
        def gauge(name, tags:, comment:); METRICS[name] = Metric.new(:gauge, comment); end
        def counter(name, tags:, comment:); METRICS[name] = Metric.new(:counter, comment); end
      end
      class << self
        def configure(&block); instance_exec(&block); end
        def group(name, &block); Group.new.instance_exec(&block); end
        def collect(&block); (@collectors ||= []) << block; end
        attr_reader :collectors
        def rbloat; @rbloat ||= Class.new { METRICS.each_key { |name| define_method(name) { METRICS.fetch(name) } } }.new; end
      end
    end
    def require(name); name == "yabeda" ? false : super; end
  RUBY

  def test_the_protocol_of_yabeda
    kinds, values = run_ruby(<<~RUBY)
      #{YABEDA}
      require "rbloat/yabeda"
      2.times { Yabeda.collectors.each(&:call) }
      [Yabeda::METRICS.transform_values(&:kind), Yabeda::METRICS.transform_values(&:value)]
    RUBY
    assert_equal %w[gauge counter], kinds.values_at("rss_bytes", "auto_trim_trims")
    assert_operator values["rss_bytes"], :>, 1_000_000
    assert_equal 0, values["auto_trim_trims"]
  end

  # The protocol of the API (opentelemetry-metrics-api), since no registry here has the gem.
  def test_the_protocol_of_opentelemetry
    instruments = run_ruby(<<~'RUBY')
      require "rbloat/opentelemetry"
      class Meter
        attr_reader :all
        def initialize; @all = {}; end
        def create_observable_gauge(name, callback:, unit: nil, description: nil); @all[name] = ["gauge", unit, callback.call]; end
        def create_observable_counter(name, callback:, unit: nil, description: nil); @all[name] = ["counter", unit, callback.call]; end
      end
      meter = Meter.new
      Rbloat::OpenTelemetryAdapter.install(meter)
      meter.all
    RUBY
    kind, unit, value = instruments.fetch("rbloat.rss_bytes")
    assert_equal %w[gauge By], [kind, unit]
    assert_operator value, :>, 1_000_000
    assert_equal ["counter", "s", 0.0], instruments.fetch("rbloat.auto_trim_trim_seconds")
    assert_equal ["counter", "1", 0], instruments.fetch("rbloat.auto_trim_trims")
  end

  def test_opentelemetry
    needs "opentelemetry-metrics-sdk"
    names = run_ruby(<<~RUBY)
      require "rbloat/opentelemetry"
      require "opentelemetry-metrics-sdk"
      provider = OpenTelemetry::SDK::Metrics::MeterProvider.new
      reader = OpenTelemetry::SDK::Metrics::Export::InMemoryMetricPullExporter.new
      provider.add_metric_reader(reader)
      Rbloat::OpenTelemetryAdapter.install(provider.meter("rbloat"))
      reader.pull
      reader.metric_snapshots.map(&:name)
    RUBY
    assert_includes names, "rbloat.rss_bytes"
  end

  def test_the_log_of_requests
    needs "logger"
    log = run_ruby(<<~RUBY)
      require "logger"
      require "stringio"
      output = StringIO.new
      kept = nil
      app = Rbloat::RequestLog.new(->(env) { kept = Array.new(9_000) { "x" * 1_000 } if env["PATH_INFO"] == "/large" },
                                   logger: Logger.new(output), least_bytes: 1 << 20)
      %w[/small /large].each { |path| app.call("REQUEST_METHOD" => "GET", "PATH_INFO" => path) }
      output.string
    RUBY
    assert_equal 1, log.lines.size, log
    assert_match(%r{rbloat: GET /large: RSS \+\d+\.\d MiB, (9|1\d)\d{3} new objects}, log)
  end
end
