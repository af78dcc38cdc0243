# frozen_string_literal: true

# The metrics of each process are in a file that it maps, and nothing deletes them (prometheus/client_ruby#143, #185). If the folder
# is a tmpfs, they are memory, which the kernel cannot drop.

require_relative "../lib/scenario"

# The files with metrics.
module Metrics
  BYTES = 30 << 20
  FILES = []

  def self.map(path)
    File.open(path, "w+") do |file|
      file.truncate(BYTES)
      FILES << IO::Buffer.map(file, BYTES)
    end
    (0...BYTES).step(4096) { |at| FILES.last.set_string("1", at) }
  ensure
    # So that nothing stays if the process is killed.
    File.unlink(path)
  end
end

Scenario.run(expect: "file.shared") do |scale|
  if defined?(IO::Buffer) && File.directory?("/dev/shm")
    Warning[:experimental] = false
    (3 * scale).ceil.times { |number| Metrics.map("/dev/shm/metric_counter_#{Process.pid}_#{number}.db") }
  end
  { shmem_bytes: File.read("/proc/self/status")[/^RssShmem:\s+(\d+) kB$/, 1].to_i * 1024 }
end
