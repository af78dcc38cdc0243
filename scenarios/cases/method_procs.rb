# frozen_string_literal: true

# Hooks made of methods: the variables of their frames belong to no bytecode, since the frames are those of C functions.

require_relative "../lib/scenario"

# Callbacks that are registered and never removed.
module Hooks
  LIST = []

  def self.run(event)
    event
  end
end

Scenario.run do |scale|
  (100_000 * scale).ceil.times { Hooks::LIST << Hooks.method(:run).to_proc }
  {}
end
