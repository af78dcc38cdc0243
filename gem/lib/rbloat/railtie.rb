# frozen_string_literal: true

require "rails/railtie"

module Rbloat
  # Calls {Rbloat.start} when the application is initialized, except in consoles, rake tasks and tests. `config.rbloat`
  # is {Rbloat.configuration}:
  #
  #     config.rbloat.profile = :off # default: :server
  class Railtie < ::Rails::Railtie
    config.rbloat = Rbloat.configuration

    config.after_initialize do
      Rbloat.configuration.logger ||= ::Rails.logger
      Rbloat.start unless Railtie.short_lived?
    end

    # @return [Boolean] true in a console, a rake task or a test
    # @api private
    def self.short_lived?
      rake = defined?(::Rake) && ::Rake.respond_to?(:application) && ::Rake.application.top_level_tasks.any?
      ::Rails.env.test? || !!defined?(::Rails::Console) || !!rake
    end
  end
end
