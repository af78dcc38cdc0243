# frozen_string_literal: true

require_relative "rbloat/core"
require_relative "rbloat/railtie" if defined?(Rails::Railtie)
