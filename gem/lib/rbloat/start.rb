# frozen_string_literal: true

# Starts the features that environment variables select.
Rbloat::AutoTrim.start if ENV["RBLOAT_AUTO_TRIM"] == "1"
Rbloat::NativePressure.start if ENV["RBLOAT_NATIVE_PRESSURE"] == "1"
require_relative "railtie" if defined?(Rails::Railtie)
