# frozen_string_literal: true

require_relative "test_helper"

# The hooks for Rails, Puma and Sidekiq, with the real gems.
class HooksTest < Minitest::Test
  def start_rails(configuration, env = {})
    needs "rails"
    run_ruby(<<~RUBY, prelude: "", env: env)
      require "json"
      require "logger"
      require "rails"
      require "rbloat"
      class Application < Rails::Application
        config.eager_load = false
        config.logger = Logger.new(IO::NULL)
        #{configuration}
      end
      before = Rbloat::AutoTrim.running?
      Application.initialize!
      [before, Rbloat::AutoTrim.running?]
    RUBY
  end

  def test_rails_starts_it_when_initialized
    assert_equal [false, true], start_rails("")
  end

  def test_rails_does_not_where_the_configuration_or_the_environment_says_so
    assert_equal [false, false], start_rails("config.rbloat.auto_trim = false")
    assert_equal [false, false], start_rails("", "RBLOAT_AUTO_TRIM" => "0")
  end

  # A server that responds with its process id, whether AutoTrim is running, and the number of trims.
  PUMA = <<~'RUBY'
    require "json"
    workers %d
    threads 1, 1
    plugin :rbloat
    bind "unix://%s/socket"
    app do |env|
      if env["PATH_INFO"] == "/burst"
        Array.new(50_000) { "x" * rand(64..4_000) }
        GC.start
      end
      body = JSON.generate([Process.pid, Rbloat::AutoTrim.running?, Rbloat::AutoTrim.stats[:trims]])
      [200, { "content-length" => body.bytesize.to_s }, [body]]
    end
  RUBY

  def with_puma(workers)
    needs "puma"
    Dir.mktmpdir do |folder|
      File.write("#{folder}/puma.rb", format(PUMA, workers, folder))
      log = File.open("#{folder}/log", "w")
      server = Process.spawn(*ruby, "-S", "puma", "-C", "#{folder}/puma.rb", chdir: folder, out: log, err: log)
      wait_until { File.socket?("#{folder}/socket") && get(folder, "/") }
      yield folder
    ensure
      Process.kill(:TERM, server)
      Process.wait(server)
    end
  end

  def get(folder, path)
    UNIXSocket.open("#{folder}/socket") do |socket|
      socket.write("GET #{path} HTTP/1.0\r\n\r\n")
      body = socket.read.split("\r\n\r\n", 2).last
      JSON.parse(body) if body
    end
  rescue SystemCallError
    nil
  end

  def test_puma_trims_in_a_single_process
    with_puma(0) do |folder|
      assert get(folder, "/burst")[1]
      wait_until { get(folder, "/")&.last.to_i.positive? }
      refute_match(/before_fork/, File.read("#{folder}/log"))
    end
  end

  def test_puma_trims_in_each_worker
    with_puma(2) do |folder|
      trimmed = {}
      wait_until do
        pid, running, trims = get(folder, trimmed.size < 2 ? "/burst" : "/")
        assert running if pid
        trimmed[pid] = trims if trims.to_i.positive?
        trimmed.size == 2
      end
    end
  end

  def test_sidekiq_installs_its_hooks
    needs "sidekiq"
    answer = run_ruby(<<~RUBY, prelude: 'require "json"')
      require "sidekiq"
      require "sidekiq/cli"
      require "rbloat/sidekiq"
      config = Sidekiq.respond_to?(:default_configuration) ? Sidekiq.default_configuration : Sidekiq
      events = config.respond_to?(:options) ? config.options[:lifecycle_events] : config[:lifecycle_events]
      events[:startup].each(&:call)
      started = Rbloat::AutoTrim.running?
      result = nil
      config.server_middleware.invoke(Object.new, {}, "default") { result = Rbloat::AutoTrim.running? }
      events[:shutdown].each(&:call)
      [started, result, Rbloat::AutoTrim.running?]
    RUBY
    assert_equal [true, true, false], answer
  end
end
