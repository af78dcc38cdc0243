# frozen_string_literal: true

# A thread that allocates for a moment and then sleeps. By the time at which its stack is read, it often sleeps already.

require_relative "truth"

KEPT = []

def large
  KEPT << ("l" * 300_000)
end

def small
  KEPT << Array.new(100) { "s" * 500 }
end

Truth.run do
  400.times do
    Truth.of("Object#large") { large }
    sleep 0.003
    Truth.of("Object#small") { small }
    sleep 0.003
  end
end
