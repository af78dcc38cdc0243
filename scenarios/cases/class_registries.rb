# frozen_string_literal: true

# Classes without a constant, which something else keeps with all that they have: a class for each schema in a registry
# (trailblazer/reform#525), versions of a reloaded class in a list of hooks (rails/rails#55923), and a module that a class includes.

require_relative "../lib/scenario"

TEXT = "x" * 900

Rule = Struct.new(:text)
Column = Struct.new(:text)
Option = Struct.new(:text)

class Contract
  class << self
    def rule(text)
      (@rules ||= []) << Rule.new(text)
    end
  end
end

class Validators
  ALL = [] # rubocop:disable Style/MutableConstant
end

module Hooks
  @loaded = []

  class << self
    attr_reader :loaded
  end
end

class Target
end

def reload
  Object.send(:remove_const, :Reloaded) if Object.const_defined?(:Reloaded)
  Object.const_set(:Reloaded, Class.new)
  Reloaded.const_set(:TABLE, Array.new(20) { |number| Column.new("#{TEXT}#{number}") })
  Hooks.loaded << Reloaded
end

Scenario.run do |scale|
  count = (1_000 * scale).ceil
  count.times do |schema|
    Validators::ALL << Class.new(Contract) { 20.times { |number| rule("#{TEXT}#{schema}#{number}") } }
    reload
  end
  options = Module.new { @options = Array.new(20 * count) { |number| Option.new("#{TEXT}#{number}") } }
  Target.include(options)
  { classes: count }
end
