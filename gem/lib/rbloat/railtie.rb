# frozen_string_literal: true

require "rails/railtie"

module Rbloat
  # Calls {Rbloat.start} when the application is initialized, if a profile was chosen; except in consoles, rake tasks
  # and tests. `config.rbloat` is {Rbloat.configuration}:
  #
  #     config.rbloat.profile = :server
  class Railtie < ::Rails::Railtie
    config.rbloat = Rbloat.configuration

    config.after_initialize do
      Rbloat.configuration.logger ||= ::Rails.logger
      next if Railtie.short_lived?

      Rbloat.configuration.profile? ? Rbloat.start : Rbloat.configuration.complain_without_profile
    end

    # @return [Boolean] true in a console, a rake task or a test
    # @api private
    def self.short_lived?
      rake = defined?(::Rake) && ::Rake.respond_to?(:application) && ::Rake.application.top_level_tasks.any?
      ::Rails.env.test? || !!defined?(::Rails::Console) || !!rake
    end
  end
end
