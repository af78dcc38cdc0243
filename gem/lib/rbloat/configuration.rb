# frozen_string_literal: true

# Settings, and how to start and stop everything.
module Rbloat
  # The settings of {Rbloat.start}. A profile sets all of them; a setting that is assigned overrides the profile.
  #
  # @!attribute auto_trim
  #   @return [Boolean] true if AutoTrim is to run. RBLOAT_AUTO_TRIM=1 or 0 overrides it, except in the profile `:off`
  # @!attribute native_pressure
  #   @return [Boolean] true if NativePressure is to run. RBLOAT_NATIVE_PRESSURE=1 or 0 overrides it in the same way
  # @!attribute share
  #   @return [Numeric] the share of the time that trims may cost; see {AutoTrim.start}
  # @!attribute least_bytes
  #   @return [Integer] the bytes that a trim must return; see {AutoTrim.start}
  # @!attribute pressure
  #   @return [Numeric] the share of the memory limit above which it is near; see {AutoTrim.start}
  # @!attribute arenas
  #   @return [Integer, nil] the number of malloc's arenas; see {AutoTrim.start}
  # @!attribute growth
  #   @return [Boolean] true if requests and jobs are to be measured, which no profile does; see {Rbloat.growth}
  # @!attribute warmup
  #   @return [Boolean] true if the Puma plugin is to prepare forks by Process.warmup, which no profile does; see
  #     {AutoTrim.prepare_fork}
  class Configuration
    trim = { auto_trim: true, native_pressure: false, share: AutoTrim::SHARE, least_bytes: AutoTrim::LEAST_BYTES,
             pressure: AutoTrim::PRESSURE, arenas: AutoTrim::ARENAS, growth: false, warmup: false }.freeze
    # The settings of each profile.
    PROFILES = {
      server: trim,
      job: { **trim, native_pressure: true, share: 0.02 }.freeze,
      batch: { **trim, native_pressure: true, share: 0.05 }.freeze,
      off: { **trim, auto_trim: false }.freeze
    }.freeze
    # The settings that an environment variable overrides.
    VARIABLES = { auto_trim: "RBLOAT_AUTO_TRIM", native_pressure: "RBLOAT_NATIVE_PRESSURE" }.freeze
    NAMES = PROFILES.keys.join(", ").freeze
    private_constant :VARIABLES, :NAMES

    # @return [Logger, nil] receives a line when a trim returned memory, or the memory limit is near; in Rails, the
    #   logger of Rails unless another one was assigned
    attr_accessor :logger

    def initialize
      @profile = nil
      @assigned = {}
      @logger = nil
      @warned = false
    end

    # @return [Symbol] the profile: RBLOAT_PROFILE, or else the profile that was assigned, or else `:server`. If
    #   RBLOAT_PROFILE names no profile, it is ignored with a warning
    def profile
      in_environment || @profile || :server
    end

    # @param name [Symbol, String] `:server`, `:job`, `:batch` or `:off`
    # @raise [ArgumentError] if there is no such profile
    def profile=(name)
      @profile = find(name) || raise(ArgumentError, "profile must be one of #{NAMES}, got #{name.inspect}")
    end

    # @return [Boolean] true if a profile was chosen: by RBLOAT_PROFILE, by an assignment, or by {Rbloat.start}
    def profile?
      !(in_environment || @profile).nil?
    end

    # Warns that the settings have no effect, if any were assigned.
    # @api private
    def complain_without_profile
      return if @assigned.empty?

      logger&.warn("rbloat: ignored config.rbloat, which has no profile: add config.rbloat.profile = :server")
    end

    PROFILES.fetch(:server).each_key do |name|
      define_method(name) { value_of(name) }
      define_method(:"#{name}=") { |value| @assigned[name] = value }
    end

    private

    def in_environment
      named = ENV.fetch("RBLOAT_PROFILE", "").strip.downcase
      found = find(named)
      warn_once(named) unless found || named.empty?
      found
    end

    def value_of(name)
      variable = VARIABLES[name] && ENV.fetch(VARIABLES[name], nil)
      return variable == "1" if %w[0 1].include?(variable) && profile != :off

      @assigned.fetch(name) { PROFILES.fetch(profile).fetch(name) }
    end

    def find(name)
      PROFILES.keys.find { |profile| profile.to_s == name.to_s }
    end

    # A wrong variable must not stop a server.
    def warn_once(named)
      return if @warned

      @warned = true
      warn "rbloat: ignored RBLOAT_PROFILE=#{named}: it must be one of #{NAMES}"
    end
  end

  @configuration = Configuration.new

  class << self
    # @return [Configuration] the settings of {start}
    attr_reader :configuration

    # Changes the settings of {start}:
    #
    #     Rbloat.configure do |config|
    #       config.profile = :job
    #       config.share = 0.03
    #     end
    #
    # @yieldparam config [Configuration]
    # @return [Configuration]
    def configure
      yield configuration
      configuration
    end

    # Starts the features that the configuration selects, with the profile `:server` unless another one was chosen; in
    # the profile `:off` it stops them. The hooks for Puma and Sidekiq call this, and the one for Rails if a profile was
    # chosen.
    # @return [Boolean] true if a feature is running
    def start
      configuration.profile = :server unless configuration.profile?
      return stop if configuration.profile == :off

      start_auto_trim
      NativePressure.start if configuration.native_pressure
      measure_actions
      running = AutoTrim.running? || NativePressure.running?
      Notifier.start(configuration) if running
      running
    end

    # Stops AutoTrim, NativePressure, and the notifications.
    # @return [false]
    def stop
      Notifier.stop
      ActiveSupport::Notifications.unsubscribe(@measured) if @measured
      @measured = nil
      AutoTrim.stop
      NativePressure.stop
      false
    end

    private

    def measure_actions
      return if @measured || !configuration.growth || !defined?(ActionController)

      @measured = ActiveSupport::Notifications.subscribe("process_action.action_controller",
                                                         Growth::Subscriber.new(@requests))
    end

    # Starts AutoTrim with the settings, again if they have changed since; stops it if it is off now. An AutoTrim that
    # the program has started itself stays as it is.
    def start_auto_trim
      wanted = auto_trim_options if configuration.auto_trim
      AutoTrim.stop if @auto_trim && @auto_trim != wanted
      AutoTrim.start(**wanted) if wanted
      @auto_trim = wanted
    end

    def auto_trim_options
      %i[share least_bytes pressure arenas].to_h { |name| [name, configuration.public_send(name)] }
    end
  end
end
