# frozen_string_literal: true

require "open3"

# The load of load.lua, and what came of it.
module Wrk
  SCRIPT = File.expand_path("../load.lua", __dir__)
  UNITS = { "us" => 0.001, "ms" => 1, "s" => 1000, "m" => 60_000 }.freeze

  class << self
    # Its command line. The office has a fifth of the connections.
    def command(url, seconds:, connections:, pause_ms:)
      %W[wrk -t5 -c#{connections} -d#{seconds}s --timeout 60s --latency -s #{SCRIPT} #{url} -- #{pause_ms}]
    end

    def run(url, **load)
      output, status = Open3.capture2(*command(url, **load))
      raise "wrk failed: #{status}" unless status.success?

      figures(output)
    end

    private

    def figures(output)
      failed = output[/Non-2xx or 3xx responses: (\d+)/, 1].to_i
      failed += output[/Socket errors: (.*)$/, 1].to_s.scan(/\d+/).sum(&:to_i)
      { requests: output[/(\d+) requests in/, 1].to_i, failed: failed, p50_ms: milliseconds(output, "50%"),
        p99_ms: milliseconds(output, "99%") }
    end

    def milliseconds(output, share)
      number, unit = output.match(/^ +#{share} +([\d.]+)([a-z]+)/)&.captures
      (number.to_f * UNITS.fetch(unit)).round(2) if unit
    end
  end
end
