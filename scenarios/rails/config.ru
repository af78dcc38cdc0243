# frozen_string_literal: true

require_relative "config/application"

Shop::Application.initialize!
run Shop::Application
