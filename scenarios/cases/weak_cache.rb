# frozen_string_literal: true

# The entries of a cache are weak references, and nothing removes the dead ones (rubyjs/therubyracer#336). The table of finalizers
# and other tables of the interpreter grow with it.

require "weakref"
require_relative "../lib/scenario"

# The cache.
module Cache
  ENTRIES = {}
end

@step = 0

def step
  @step += 1
  # In a thread, because its stack disappears.
  Thread.new do
    60_000.times { |number| Cache::ENTRIES["document #{@step} #{number}"] = WeakRef.new(Object.new) }
  end.join
  2.times { GC.start }
  { objects: Cache::ENTRIES.size }
end

Scenario.run(commands: { "step" => method(:step) }) { step }
