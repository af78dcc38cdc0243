# frozen_string_literal: true

module Rbloat
  # Rack middleware that logs the growth of RSS and the number of new objects of each request:
  #
  #     use Rbloat::RequestLog, logger: logger, least_bytes: 1 << 20
  #
  # Ruby counts for the whole process. Requests that run at the same time in other threads are included.
  class RequestLog
    # @param app a Rack application
    # @param logger [Logger, nil] nil for the logger of {Rbloat.configuration}
    # @param least_bytes [Integer, nil] requests by which RSS grew less are not logged; nil for all
    def initialize(app, logger: nil, least_bytes: nil)
      @app = app
      @logger = logger
      @least_bytes = least_bytes
    end

    def call(env)
      rss = Rbloat.rss_bytes
      objects = GC.stat(:total_allocated_objects)
      @app.call(env)
    ensure
      log(env, (Rbloat.rss_bytes || 0) - (rss || 0), GC.stat(:total_allocated_objects) - objects)
    end

    private

    def log(env, grown, objects)
      logger = @logger || Rbloat.configuration.logger
      return unless logger && (@least_bytes.nil? || grown >= @least_bytes)

      sign = grown.negative? ? "-" : "+"
      request = env.values_at("REQUEST_METHOD", "PATH_INFO").join(" ")
      logger.info("rbloat: #{request}: RSS #{sign}#{Units.binary(grown.abs)}, #{objects} new objects")
    end
  end
end
