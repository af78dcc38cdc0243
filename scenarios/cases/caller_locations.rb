# frozen_string_literal: true

# Each declaration has the line of its caller (sorbet/sorbet#6837). This one Thread::Backtrace::Location retains the whole backtrace.

require_relative "../lib/scenario"

# Has the place of a signature.
class Declaration
  def initialize(location)
    @location = location
  end
end

# Retains all declarations.
module Registry
  DECLARATIONS = []
end

def declare(depth)
  if depth.zero?
    Registry::DECLARATIONS << Declaration.new(caller_locations.first)
  else
    declare(depth - 1)
  end
end

def step
  # In a thread, because its stack disappears.
  Thread.new { 2_000.times { declare(100) } }.join
  2.times { GC.start }
  { objects: Registry::DECLARATIONS.size }
end

Scenario.run(commands: { "step" => method(:step) }) { step }
