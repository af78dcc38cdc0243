# frozen_string_literal: true

# Twelve fibers that work in turns, in three ways.

require_relative "truth"

KEPT = []

def task_text
  KEPT << Array.new(6000) { "t" * 700 }
end

def task_rows
  KEPT << Array.new(4000) { |i| { a: i, b: i.to_s, c: [i] } }
end

def task_blob
  KEPT << "b" * (1 << 20)
end

METHODS = %i[task_text task_rows task_blob].freeze

Truth.run do
  fibers = Array.new(12) do |number|
    name = METHODS[number % METHODS.size]
    Fiber.new do
      loop do
        Truth.of("Object##{name}") { send(name) }
        Fiber.yield
      end
    end
  end
  18.times { fibers.each(&:resume) }
end
