# frozen_string_literal: true

# A manager has a Mutex for each virtual machine, and never removes those of machines that are gone (puppetlabs/vmpooler#265). The
# names are keys of a Hash, so the interpreter's table of deduplicated strings grows, too.

require_relative "../lib/scenario"

# Checks machines, each by one thread at a time.
class PoolManager
  def initialize
    @mutexes = {}
  end

  def check(name)
    mutex(name).synchronize { name.size }
  end

  private

  def mutex(name)
    @mutexes[name] ||= Mutex.new
  end
end

MANAGER = PoolManager.new

@machines = 0

def step
  50_000.times { MANAGER.check("vm-#{@machines += 1}") }
  4.times { GC.start }
  { objects: @machines }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  (2 * scale).ceil.times { step }
  { objects: @machines }
end
