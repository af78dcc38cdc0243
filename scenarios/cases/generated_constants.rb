# frozen_string_literal: true

# Each file of a recipe that is loaded again defines a class, with a constant and a method that is a block (chef/chef#918). The block
# keeps the variables around it.

require_relative "../lib/scenario"

# The resources that one run declares.
class Collection
  def initialize(number)
    @resources = Array.new(100) { |index| "resource #{index} of run #{number}" }
  end
end

# What the generated classes have in common.
class Resource
end

# Has the constants of the generated classes.
module Loaded
end

@runs = 0

def load_recipe(number)
  collection = Collection.new(number)
  type = Class.new(Resource)
  type.define_method(:initialize) { |name| @name = [name, collection] }
  Loaded.const_set(:"Recipe#{number}", type)
end

def step
  1_000.times { load_recipe(@runs += 1) }
  2.times { GC.start }
  { objects: @runs }
end

Scenario.run(commands: { "step" => method(:step) }) do
  step.merge(line: method(:load_recipe).source_location.last + 3)
end
