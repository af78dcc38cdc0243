# frozen_string_literal: true

require "rails/railtie"

module Rbloat
  # Starts AutoTrim and NativePressure when the application is initialized, according to its configuration:
  #
  #     config.rbloat.auto_trim = false      # default: true
  #     config.rbloat.native_pressure = true # default: false
  #
  # RBLOAT_AUTO_TRIM=0 in the environment overrides the configuration.
  class Railtie < ::Rails::Railtie
    config.rbloat = ActiveSupport::OrderedOptions.new
    config.rbloat.auto_trim = true
    config.rbloat.native_pressure = false

    config.after_initialize do |application|
      options = application.config.rbloat
      AutoTrim.start if options.auto_trim && ENV["RBLOAT_AUTO_TRIM"] != "0"
      NativePressure.start if options.native_pressure
    end
  end
end
