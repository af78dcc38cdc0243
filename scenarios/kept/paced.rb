# frozen_string_literal: true

# A server with a heap like that of a large program, and a fixed number of requests a second.
module Paced
  BALLAST = Array.new(200_000) { |i| ["b#{i}"] }

  # Works for ever. The block is a request.
  def self.run(requests_per_second)
    4.times { GC.start }
    puts "ready {}"
    $stdout.flush
    start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    (1..).each do |number|
      yield number
      ahead = number / requests_per_second - (Process.clock_gettime(Process::CLOCK_MONOTONIC) - start)
      sleep ahead if ahead > 0
    end
  end
end
