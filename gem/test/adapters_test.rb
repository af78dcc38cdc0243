# frozen_string_literal: true

require_relative "test_helper"

# The adapters for metrics, with the real gems where they are installed.
class AdaptersTest < Minitest::Test
  def test_prometheus
    needs "prometheus/client"
    text = run_ruby(<<~RUBY)
      require "rbloat/prometheus"
      require "prometheus/client/formats/text"
      metrics = Rbloat::PrometheusAdapter.new
      metrics.update
      Prometheus::Client::Formats::Text.marshal(Prometheus::Client.registry)
    RUBY
    assert_match(/^rbloat_rss_bytes [1-9]\d{6,}/, text)
    assert_match(/^rbloat_auto_trim_trims 0/, text)
  end

  def test_statsd
    needs "statsd"
    server = UDPSocket.new
    server.bind("127.0.0.1", 0)
    size = run_ruby(<<~RUBY)
      require "rbloat/statsd"
      require "statsd"
      Rbloat::StatsdAdapter.new(Statsd.new("127.0.0.1", #{server.addr[1]})).update
      Rbloat.stats.size
    RUBY
    packets = Array.new(size) { server.recvfrom_nonblock(1_000).first }
    assert_match(/\Arbloat\.rss_bytes:[1-9]\d{6,}\|g\z/, packets.first)
  ensure
    server&.close
  end

  def test_yabeda
    needs "yabeda"
    assert_operator run_ruby(<<~RUBY), :>, 1_000_000
      require "rbloat/yabeda"
      Yabeda.configure!
      Yabeda.collectors.each(&:call)
      Yabeda.rbloat.rss_bytes.get({})
    RUBY
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
