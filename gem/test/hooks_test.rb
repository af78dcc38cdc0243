# frozen_string_literal: true

require_relative "test_helper"

# The hooks for Rails, Puma and Sidekiq, with the real gems.
class HooksTest < Minitest::Test
  # Starts an application, after code that runs before Rails is loaded. Returns whether AutoTrim runs before and after
  # its initialization.
  def start_rails(configuration, env = { "RAILS_ENV" => "production" }, before: "")
    needs "rails"
    run_ruby(<<~RUBY, prelude: "", env: env)
      #{before}
      require "json"
      require "securerandom"
      require "logger"
      require "rails"
      require "rbloat"
      class Application < Rails::Application
        config.eager_load = false
        config.logger = Logger.new(IO::NULL)
        config.secret_key_base = SecureRandom.hex
        #{configuration}
      end
      before = Rbloat::AutoTrim.running?
      Application.initialize!
      [before, Rbloat::AutoTrim.running?]
    RUBY
  end

  SERVER = "config.rbloat.profile = :server"
  PRODUCTION = { "RAILS_ENV" => "production" }.freeze

  def test_rails_starts_it_when_a_profile_is_chosen
    assert_equal [false, true], start_rails(SERVER)
    assert_equal [false, true], start_rails("", { **PRODUCTION, "RBLOAT_PROFILE" => "server" })
  end

  # A gem in the Gemfile started a thread, and limited malloc's arenas for good.
  def test_rails_does_nothing_without_a_profile
    assert_equal [false, false], start_rails("")
  end

  def test_rails_warns_of_settings_without_a_profile
    needs "logger"
    settings = <<~RUBY
      config.rbloat.share = 0.02
      config.rbloat.logger = Logger.new($stderr)
    RUBY
    assert_equal [false, false], start_rails(settings)
    assert_match(/rbloat: ignored config.rbloat, which has no profile/, errors)
  end

  # `plugin :rbloat` loads the gem before Rails, and starts AutoTrim before the application is configured.
  def test_rails_configures_what_was_started_before_it_was_loaded
    early = 'require "rbloat/core"; Rbloat.start'
    assert_equal [true, false], start_rails("config.rbloat.auto_trim = false", before: early)
  end

  def test_rails_does_not_where_the_configuration_or_the_environment_says_so
    assert_equal [false, false], start_rails("#{SERVER}; config.rbloat.auto_trim = false")
    assert_equal [false, false], start_rails("config.rbloat.profile = :off")
    assert_equal [false, false], start_rails(SERVER, { **PRODUCTION, "RBLOAT_AUTO_TRIM" => "0" })
    assert_equal [false, false], start_rails(SERVER, { **PRODUCTION, "RBLOAT_PROFILE" => "off" })
  end

  def test_rails_does_not_in_tests_consoles_and_rake_tasks
    assert_equal [false, true], start_rails(SERVER, { "RAILS_ENV" => "development" })
    assert_equal [false, false], start_rails(SERVER, { "RAILS_ENV" => "test" })
    assert_equal [false, false], start_rails(<<~RUBY)
      #{SERVER}
      require "rails/command"
      require "rails/commands/console/console_command"
    RUBY
    assert_equal [false, true], start_rails("#{SERVER}; require 'rake'")
    task = "require 'rake'; Rake.application.top_level_tasks << 'db:migrate'"
    assert_equal [false, false], start_rails("#{SERVER}; #{task}")
  end

  # The lines of the README. Nothing started AutoTrim in a worker that is a rake task.
  def test_a_worker_that_rake_starts
    needs "rails"
    Dir.mktmpdir do |folder|
      FileUtils.mkdir_p("#{folder}/config")
      File.write("#{folder}/config/environment.rb", "Rails.application.initialize!")
      lines = File.read("#{__dir__}/../README.md")[%r{^# lib/tasks/rbloat\.rake\n(.*?)```}m, 1]
      assert_equal [false, true, "job"], run_ruby(<<~RUBY, prelude: "", env: { "RAILS_ENV" => "production" })
        %w[json securerandom logger rails rake rbloat].each { |library| require library }
        class Application < Rails::Application
          config.root = "#{folder}"
          config.eager_load = false
          config.logger = Logger.new(IO::NULL)
          config.secret_key_base = SecureRandom.hex
        end
        Rake.application.init("rake", ["jobs:work"])
        Application.load_tasks
        running = []
        # After the initialization, before the prerequisites that the application adds.
        Rake::Task.define_task(:initialized => :environment) { running << Rbloat::AutoTrim.running? }
        Rake::Task.define_task("jobs:work" => :initialized) { running << Rbloat::AutoTrim.running? }
        #{lines}
        Rake.application.top_level
        [*running, Rbloat.configuration.profile]
      RUBY
    end
  end

  # A server that responds with its process id, whether AutoTrim is running, and the number of trims.
  PUMA = <<~'RUBY'
    require "json"
    plugin :rbloat if ENV["PLUGIN"] == "first"
    workers %d
    threads 1, 1
    plugin :rbloat if ENV["PLUGIN"] == "last"
    bind "unix://%s/socket"
    if defined?(Rbloat)
      Rbloat::AutoTrim.singleton_class.prepend(Module.new { def prepare_fork(warmup:); $prepared = 1; super; end })
    end
    app do |env|
      if env["PATH_INFO"] == "/burst"
        Array.new(50_000) { "x" * rand(64..4_000) }
        GC.start
      end
      body = JSON.generate([Process.pid, Rbloat::AutoTrim.running?, Rbloat::AutoTrim.stats[:trims], $prepared])
      [200, { "content-length" => body.bytesize.to_s }, [body]]
    end
  RUBY

  def with_puma(workers, env = { "PLUGIN" => "last" })
    needs "puma"
    Dir.mktmpdir do |folder|
      File.write("#{folder}/puma.rb", format(PUMA, workers, folder))
      log = File.open("#{folder}/log", "w")
      server = Process.spawn(env, *ruby, "-S", "puma", "-C", "#{folder}/puma.rb", chdir: folder, out: log, err: log)
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

  # Seconds between two requests. On a slow machine a server that is asked all the time is busy, so it must earn a trim
  # by its CPU time, which takes minutes.
  IDLE = 1

  def test_puma_trims_in_a_single_process
    with_puma(0) do |folder|
      assert get(folder, "/burst")[1]
      wait_until(pause: IDLE) { get(folder, "/")&.at(2).to_i.positive? }
      refute_match(/before_fork/, File.read("#{folder}/log"))
    end
  end

  def test_the_switch_turns_off_the_plugin
    with_puma(0, { "PLUGIN" => "last", "RBLOAT_PROFILE" => "off" }) { |folder| refute get(folder, "/burst")[1] }
  end

  # The plugin looked for workers when it was loaded, so it had to come after them.
  def test_puma_prepares_forks_wherever_the_plugin_stands
    %w[first last].each do |place|
      with_puma(1, { "PLUGIN" => place }) do |folder|
        # The server loads the gem, and a worker inherits the count.
        wait_until { get(folder, "/")&.at(3).to_i.positive? }
      end
    end
  end

  def test_puma_trims_in_each_worker
    with_puma(2) do |folder|
      trimmed = {}
      wait_until(pause: IDLE) do
        pid, running, trims, = get(folder, trimmed.size < 2 ? "/burst" : "/")
        assert running if pid
        trimmed[pid] = trims if trims.to_i.positive?
        trimmed.size == 2
      end
    end
  end

  def test_sidekiq_installs_its_hooks
    assert_equal [true, true, false, "job", []], start_sidekiq
    assert_equal [true, true, false, "job", ["Export"]], start_sidekiq(configure: "Rbloat.configuration.growth = true")
  end

  def test_the_switch_turns_off_the_hooks_of_sidekiq
    assert_equal [false, false, false, "off", []], start_sidekiq({ "RBLOAT_PROFILE" => "off" })
  end

  def start_sidekiq(env = {}, configure: "")
    needs "sidekiq"
    run_ruby(<<~RUBY, prelude: 'require "json"', env: env)
      require "sidekiq"
      require "sidekiq/cli"
      require "rbloat/sidekiq"
      #{configure}
      config = Sidekiq.respond_to?(:default_configuration) ? Sidekiq.default_configuration : Sidekiq
      events = config.respond_to?(:options) ? config.options[:lifecycle_events] : config[:lifecycle_events]
      events[:startup].each(&:call)
      started = Rbloat::AutoTrim.running?
      result = nil
      config.server_middleware.invoke(Object.new, { "wrapped" => "Export" }, "default") { result = Rbloat::AutoTrim.running? }
      events[:shutdown].each(&:call)
      [started, result, Rbloat::AutoTrim.running?, Rbloat.configuration.profile,
       Rbloat.growth.map { |row| row[:name] }]
    RUBY
  end
end
