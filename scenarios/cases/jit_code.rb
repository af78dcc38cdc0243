# frozen_string_literal: true

# YJIT (Ruby 3.1 or newer) compiles many methods, because all of them are called often.

require "rbconfig"
require_relative "../lib/scenario"

exec({ "RUBYOPT" => "--yjit" }, RbConfig.ruby, $PROGRAM_NAME, *ARGV) unless ENV["RUBYOPT"].to_s.include?("--yjit")

# The methods.
module Templates
  class << self
    def define(count)
      count.times do |number|
        module_eval("def self.row_#{number}(a) = a.to_s.size + [a, #{number}].sum + { a => 1 }.size + \"x\#{a}\".size", "row.rb", 1)
      end
    end

    def call(count)
      60.times { |value| count.times { |number| public_send("row_#{number}", value) } }
    end
  end
end

Scenario.run do |scale|
  methods = (8_000 * scale).ceil
  Templates.define(methods)
  Templates.call(methods)
  { methods: methods }
end
