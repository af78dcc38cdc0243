# frozen_string_literal: true

# A job that is forked from a process with many threads has what was in their thread caches, and no thread that could use it.

require "fiddle"
require_relative "../lib/scenario"

THREADS = 300
# As many blocks of each size as a thread cache keeps.
SIZES = (24..1_032).step(16).to_a
KEPT = 7

at_the_end = Queue.new
count = (THREADS * (ARGV.last || 1).to_f).ceil
count.times do
  Thread.new do
    blocks = SIZES.flat_map { |bytes| Array.new(KEPT) { Fiddle.malloc(bytes) } }
    blocks.each { |block| Fiddle::Pointer.new(block)[0, 16] = "x" * 16 }
    blocks.each { |block| Fiddle.free(block) }
    at_the_end << 1
    sleep
  end
end
count.times { at_the_end.pop }

cached = count * KEPT * SIZES.sum { |bytes| bytes + 8 }
job = fork do
  Scenario.run { { threads: count, cached_bytes: cached } }
end
Process.wait(job)
