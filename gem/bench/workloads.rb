# frozen_string_literal: true

# Workloads of threads that allocate strings. The scenarios with the same names are shorter.
module Workloads
  # Retains nothing.
  def self.churn(random)
    300.times { 1_000.times { "x" * random.rand(4_096) } }
  end

  # Builds a large array, passes it to the block, and drops it. A short sleep lets the peaks of several threads overlap.
  def self.burst(random)
    12.times do
      result = Array.new(5_000) { "x" * random.rand(64..8_255) }
      sleep 0.001
      yield result if block_given?
      result.clear
    end
  end
end
