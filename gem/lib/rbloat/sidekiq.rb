# frozen_string_literal: true

require "rbloat"
require "sidekiq"

# The hooks for Sidekiq.
module Rbloat
  # Hooks for Sidekiq's server, which call {Rbloat.start}. To use them, `require "rbloat/sidekiq"`. They select the
  # profile `:job` unless another one was assigned.
  module SidekiqHooks
    # Middleware that counts running jobs and announces to AutoTrim when none is left.
    class WhenIdle
      @running = 0
      @lock = Mutex.new

      class << self
        # Counts one job while the block runs.
        def count
          @lock.synchronize { @running += 1 }
          yield
        ensure
          idle = @lock.synchronize { (@running -= 1).zero? }
          AutoTrim.quiet! if idle
        end
      end

      # Called by Sidekiq for each job.
      def call(job, payload, _queue, &work)
        # A job of ActiveJob has its class in `wrapped`.
        name = payload["wrapped"] || job.class.name
        self.class.count { Rbloat.__send__(:measure_growth, name.to_s, &work) }
      end
    end

    # @param config the configuration of a Sidekiq server
    def self.install(config)
      Rbloat.configuration.profile = :job unless Rbloat.configuration.profile?
      config.on(:startup) { Rbloat.start }
      config.on(:shutdown) { Rbloat.stop }
      config.server_middleware { |chain| chain.add(WhenIdle) }
    end
  end
  private_constant :SidekiqHooks

  ::Sidekiq.configure_server { |config| SidekiqHooks.install(config) }
end
