# frozen_string_literal: true

# A thread for each request, as some servers have. Each lives for some milliseconds.

require_relative "truth"

KEPT = []

def list
  KEPT << Array.new(3000) { "l" * 500 }
end

def item
  KEPT << Array.new(5000) { |i| [i, i.to_s] }
end

Truth.run do
  150.times.each_slice(3) do |numbers|
    threads = numbers.map do |number|
      name = number % 3 == 0 ? :list : :item
      Thread.new { Truth.of("Object##{name}") { send(name) } }
    end
    threads.each(&:join)
    sleep 0.005
  end
end
