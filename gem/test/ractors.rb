# frozen_string_literal: true

# For tests of methods in a Ractor other than the main one.
module Ractors
  PRELUDE = <<~'RUBY'
    require "json"
    require "rbloat"
    require "rbloat/results"
    Warning[:experimental] = false

    def in_ractor(&block)
      ractor = Ractor.new(&block)
      ractor.respond_to?(:value) ? ractor.value : ractor.take
    rescue Ractor::RemoteError => error
      "#{error.cause.class}: #{error.cause.message}"
    end
  RUBY

  def setup
    skip "Ractor came with Ruby 3.0" unless defined?(Ractor)
  end

  def in_ractor(code, env: {})
    run_ruby("in_ractor { #{code} }", env: env, prelude: PRELUDE)
  end
end
