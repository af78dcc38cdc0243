# frozen_string_literal: true

require_relative "test_helper"

# Rbloat.configure, the profiles, and the switch that turns everything off.
class ConfigurationTest < Minitest::Test
  RUNNING = "[Rbloat::AutoTrim.running?, Rbloat::NativePressure.running?]"

  def test_profiles
    { "server" => [true, false], "job" => [true, true], "batch" => [true, true], "off" => [false, false] }
      .each do |name, running|
        assert_equal running, run_ruby("Rbloat.start; #{RUNNING}", env: { "RBLOAT_PROFILE" => name }), name
      end
  end

  def test_an_assigned_setting_overrides_the_profile_in_any_order
    config = Rbloat::Configuration.new
    config.share = 0.5
    config.profile = :batch
    assert_equal [0.5, true], [config.share, config.native_pressure]
    config.native_pressure = false
    refute config.native_pressure
    assert_equal Rbloat::AutoTrim::LEAST_BYTES, config.least_bytes
  end

  def test_the_environment_overrides_what_was_assigned
    configured = <<~RUBY
      Rbloat.configure do |config|
        config.profile = :job
        config.auto_trim = true
      end
      Rbloat.start
      #{RUNNING}
    RUBY
    assert_equal [true, true], run_ruby(configured)
    assert_equal [false, true], run_ruby(configured, env: { "RBLOAT_AUTO_TRIM" => "0" })
    assert_equal [true, false], run_ruby(configured, env: { "RBLOAT_PROFILE" => "server" })
  end

  def test_the_profile_off_is_stronger_than_all_other_variables
    env = { "RBLOAT_PROFILE" => "off", "RBLOAT_AUTO_TRIM" => "1", "RBLOAT_NATIVE_PRESSURE" => "1" }
    assert_equal [false, [false, false]], run_ruby("[Rbloat.start, #{RUNNING}]", env: env)
  end

  # It measured each action of a controller, and compacted the heap before forks, without being asked.
  def test_no_profile_measures_requests_or_compacts
    Rbloat::Configuration::PROFILES.each do |name, settings|
      assert_equal [false, false], settings.values_at(:growth, :warmup), name
    end
  end

  def test_a_start_chooses_the_profile_of_servers
    assert_equal [false, true, "server"], run_ruby(<<~RUBY)
      chosen = [Rbloat.configuration.profile?]
      Rbloat.start
      [*chosen, Rbloat.configuration.profile?, Rbloat.configuration.profile]
    RUBY
  end

  def test_off_stops_what_a_hook_has_started
    assert_equal [false, false], run_ruby("Rbloat.start; Rbloat.configuration.profile = :off; Rbloat.start; #{RUNNING}")
  end

  def test_an_unknown_profile_is_refused
    error = assert_raises(ArgumentError) { Rbloat::Configuration.new.profile = :sevrer }
    assert_equal "profile must be one of server, job, batch, off, got :sevrer", error.message
  end

  # It raised an error while the gem was loaded.
  def test_an_unknown_profile_in_the_environment_is_ignored_with_one_warning
    configured = "Rbloat.configuration.profile = :job; [Rbloat.start, Rbloat.configuration.profile]"
    assert_equal [true, "job"], run_ruby(configured, env: { "RBLOAT_PROFILE" => "Sevrer" })
    assert_equal "rbloat: ignored RBLOAT_PROFILE=sevrer: it must be one of server, job, batch, off\n", errors
    assert_equal "server", run_ruby("Rbloat.configuration.profile", env: { "RBLOAT_PROFILE" => "0" })
  end

  def test_internals_are_private
    internals = %i[Malloc Fork Program Cgroups Notifier EventLog Growth Metrics Units]
    assert internals.all? { |name| Rbloat.const_defined?(name, false) }
    assert_empty internals & Rbloat.constants
  end

  def test_other_libraries_are_not_shadowed
    %w[PG Mysql2 Sidekiq Puma Rack Rails Prometheus Yabeda StatsD OpenTelemetry].each do |name|
      refute Rbloat.const_defined?(name, false), name
    end
  end
end
