# frozen_string_literal: true

# Starts the features that environment variables select.
unless Rbloat.configuration.profile == :off
  Rbloat.send(:start_auto_trim) if ENV["RBLOAT_AUTO_TRIM"] == "1"
  Rbloat::NativePressure.start if ENV["RBLOAT_NATIVE_PRESSURE"] == "1"
end
