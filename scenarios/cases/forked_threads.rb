# frozen_string_literal: true

# A job that is forked from a process with many threads has their stacks, which nobody runs on (ruby/ruby#13591,
# resque/resque#1872). "step" lets a thread end in the job.

require_relative "../lib/scenario"

DEPTH = 900
THREADS = 150
# Ruby keeps a native thread for some seconds before it ends.
KEPT = 30

def deep(depth, &block)
  depth.zero? ? block.call : [1].each { deep(depth - 1, &block) }
end

at_the_end = Queue.new
count = (THREADS * (ARGV.last || 1).to_f).ceil
count.times do
  Thread.new do
    deep(DEPTH) { at_the_end << 1 }
    sleep
  end
end
count.times { at_the_end.pop }

job = fork do
  end_a_thread = lambda do
    before = Scenario.rss_bytes
    Thread.new {}.join
    (KEPT * 10).times do
      break if Scenario.rss_bytes < before / 2

      sleep 0.1
    end
    { returned: before - Scenario.rss_bytes }
  end
  Scenario.run(commands: { "step" => end_a_thread }) { { threads: count } }
end
Process.wait(job)
