# frozen_string_literal: true

require "rails/railtie"

module Rbloat
  # Starts what the application's configuration asks for, when it is initialized:
  #
  #     config.rbloat.auto_trim = false      # true is the default
  #     config.rbloat.native_pressure = true # false is the default
  #
  # RBLOAT_AUTO_TRIM=0 in the environment keeps AutoTrim off whatever the configuration says.
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
