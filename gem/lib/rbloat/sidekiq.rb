# frozen_string_literal: true

require "rbloat"
require "sidekiq"

module Rbloat
  # Hooks for Sidekiq's server: `require "rbloat/sidekiq"`.
  module Sidekiq
    # Knows how many jobs run in this process, and tells AutoTrim when the last one is through.
    class WhenIdle
      @running = 0
      @lock = Mutex.new

      class << self
        # Counts a job while the block runs.
        def count
          @lock.synchronize { @running += 1 }
          yield
        ensure
          idle = @lock.synchronize { (@running -= 1).zero? }
          AutoTrim.quiet! if idle
        end
      end

      # As Sidekiq calls its middleware.
      def call(_job, _payload, _queue, &work)
        self.class.count(&work)
      end
    end

    # @param config Sidekiq's configuration of a server
    def self.install(config)
      config.on(:startup) { AutoTrim.start }
      config.on(:shutdown) { AutoTrim.stop }
      config.server_middleware { |chain| chain.add(WhenIdle) }
    end
  end
end

Sidekiq.configure_server { |config| Rbloat::Sidekiq.install(config) }
