# frozen_string_literal: true

# 20 threads build results at once, in four ways.

require_relative "truth"

def build_strings
  Array.new(14_000) { |i| "x" * (900 + i % 200) }
end

def build_hashes
  Array.new(9000) { |i| { id: i, a: i.to_s, b: [i, i + 1], c: nil, d: 1.5, e: 2, f: 3, g: 4, h: 5 } }
end

def build_arrays
  Array.new(9000) { |i| Array.new(40, i) }
end

def build_text
  (0...40_000).map { |i| "line #{i} of the text\n" }.join
end

METHODS = %i[build_strings build_hashes build_arrays build_text].freeze

Truth.run do
  threads = Array.new(20) do |number|
    Thread.new do
      name = METHODS[number % METHODS.size]
      Array.new(3) { Truth.of("Object##{name}") { send(name) } }
    end
  end
  $kept = threads.map(&:value)
end
