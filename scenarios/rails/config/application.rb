# frozen_string_literal: true

ENV["RAILS_ENV"] ||= "production"

# Debian's packages, as they are: what a Gemfile would name is required here.
require "logger"
require "rails"
require "active_record/railtie"
require "action_controller/railtie"
require "action_view/railtie"
require "csv"
require "securerandom"
# RUBYOPT=-rrbloat/core loads the gem before there is a Rails; a Gemfile would load it here.
require "rbloat/railtie" if defined?(Rbloat)

module Shop
  # An ordinary application in production, but that it logs to nowhere and may be asked under any name.
  class Application < Rails::Application
    config.load_defaults 6.1
    config.eager_load = true
    config.cache_classes = true
    config.consider_all_requests_local = false
    config.logger = Logger.new(IO::NULL)
    config.secret_key_base = ENV.fetch("SECRET_KEY_BASE") { SecureRandom.hex(64) }
    config.hosts.clear
  end
end
