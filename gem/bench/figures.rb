# frozen_string_literal: true

# Seconds of a clock that only advances.
def clock
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

# Bytes.
def rss
  File.read("/proc/self/statm").split[1].to_i * 4096
end
