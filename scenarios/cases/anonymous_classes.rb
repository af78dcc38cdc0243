# frozen_string_literal: true

# A class for each request, which a list of descendants retains (rails/rails#31395, ruby-grape/grape#1109). The request "step"
# handles more requests.

require_relative "../lib/scenario"

module Tracker
  DESCENDANTS = {} # rubocop:disable Style/MutableConstant

  def inherited(child)
    super
    (DESCENDANTS[self] ||= []) << child
  end
end

class Model
  extend Tracker

  def self.attribute(name)
    define_method(name) { @attributes[name] }
  end

  def initialize(attributes)
    @attributes = attributes
  end
end

def handle_request(number)
  model = Class.new(Model) do
    attribute(:id)
    attribute(:name)

    def to_s
      "#{id} #{name}"
    end
  end
  model.new({ id: number, name: "n" }).to_s
end

REQUESTS = 3_000
handle = lambda do |count|
  count.times { |number| handle_request(number) }
  { classes: Tracker::DESCENDANTS[Model].size }
end

Scenario.run(commands: { "step" => -> { handle.(REQUESTS) } }) do |scale|
  handle.((REQUESTS * scale).ceil)
end
