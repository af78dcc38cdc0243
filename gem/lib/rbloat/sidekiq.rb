# frozen_string_literal: true

require "rbloat"
require "sidekiq"

module Rbloat
  # Hooks for Sidekiq's server. To use them, `require "rbloat/sidekiq"`.
  module Sidekiq
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
      def call(_job, _payload, _queue, &work)
        self.class.count(&work)
      end
    end

    # @param config the configuration of a Sidekiq server
    def self.install(config)
      config.on(:startup) { AutoTrim.start }
      config.on(:shutdown) { AutoTrim.stop }
      config.server_middleware { |chain| chain.add(WhenIdle) }
    end
  end
end

Sidekiq.configure_server { |config| Rbloat::Sidekiq.install(config) }
