# frozen_string_literal: true

# The metrics of each process are in a file that it maps, and nothing deletes them (prometheus/client_ruby#143, #185). If the folder
# is a tmpfs, they are memory, which the kernel cannot drop. METRICS_FOLDER is such a folder.

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

FOLDER = ENV.fetch("METRICS_FOLDER", "/dev/shm")

def shmem_bytes
  File.read("/proc/self/status")[/^RssShmem:\s+(\d+) kB$/, 1].to_i * 1024
end

def unmap
  Metrics::FILES.each(&:free).clear
  { shmem_bytes: shmem_bytes }
end

Scenario.run(commands: { "unmap" => method(:unmap) }) do |scale|
  if defined?(IO::Buffer) && File.directory?(FOLDER)
    Warning[:experimental] = false
    (3 * scale).ceil.times { |number| Metrics.map("#{FOLDER}/metric_counter_#{Process.pid}_#{number}.db") }
  end
  { shmem_bytes: shmem_bytes }
end
