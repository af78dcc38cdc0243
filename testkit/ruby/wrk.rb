# frozen_string_literal: true

# Reads the summary that wrk prints with `--latency`. For users of rbloat, crates/supervise/src/load.rs does the same.
module Wrk
  MILLISECONDS = { "us" => 0.001, "ms" => 1, "s" => 1_000, "m" => 60_000, "h" => 3_600_000 }.freeze

  class << self
    # Returns the number of requests and of failed requests, and latencies in milliseconds. A latency is nil if wrk did
    # not print it.
    def read(output)
      failed = output[/Non-2xx or 3xx responses: (\d+)/, 1].to_i
      failed += output[/Socket errors: (.*)$/, 1].to_s.scan(/\d+/).sum(&:to_i)
      { requests: output[/(\d+) requests in/, 1].to_i, failed: failed,
        p50_ms: milliseconds(output[/^ +50% +(\S+)/, 1]), p99_ms: milliseconds(output[/^ +99% +(\S+)/, 1]),
        max_ms: milliseconds(output[/^ +Latency +\S+ +\S+ +(\S+)/, 1]) }
    end

    private

    # Converts a time such as 851.00us or 1.20s.
    def milliseconds(time)
      number, unit = time.to_s.match(/\A([\d.]+)([a-z]+)\z/)&.captures
      (number.to_f * MILLISECONDS.fetch(unit)).round(2) if unit
    end
  end
end
