# frozen_string_literal: true

# The load of load.lua, and its results.
module Wrk
  SCRIPT = File.expand_path("../load.lua", __dir__)
  UNITS = { "us" => 0.001, "ms" => 1, "s" => 1000, "m" => 60_000 }.freeze

  class << self
    # Returns the command line: one thread for the office, and one for each visitor.
    def command(url, seconds:, visitors:, pause_ms:)
      clients = visitors + 1
      %W[wrk -t#{clients} -c#{clients} -d#{seconds}s --timeout 60s --latency -s #{SCRIPT} #{url} -- #{pause_ms}]
    end

    def run(url, **load)
      output = IO.popen(command(url, **load)) { |wrk| read_to_end(wrk) }
      raise "wrk failed: #{$?}" unless $?.success?

      figures(output)
    end

    private

    # An interrupted caller does not wait for the end of the load.
    def read_to_end(wrk)
      output = wrk.read
    ensure
      Process.kill(:TERM, wrk.pid) unless output
    end

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
