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

  # The jobs of one thread of a busy Sidekiq: most are small, one in ten builds 8 to 40 MiB of strings, and each waits
  # for its input for a while.
  def self.jobs(random)
    60.times { job(random) }
  end

  def self.job(random)
    count = random.rand < 0.1 ? random.rand(4_000..20_000) : random.rand(50..500)
    strings = Array.new(count) { "x" * random.rand(64..4_000) }
    sleep random.rand(0.02..0.1)
    strings.sum(&:size)
  end
end
