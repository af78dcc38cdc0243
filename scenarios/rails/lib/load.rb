# frozen_string_literal: true

require_relative "../../../testkit/ruby/wrk"

# The load of load.lua on the shop.
module Load
  SCRIPT = File.expand_path("../load.lua", __dir__)

  class << self
    # Returns the command line: one thread for the office, which pauses before each export, and one for each visitor.
    def command(url, seconds:, visitors: 8, pause_ms: nil)
      clients = visitors + 1
      words = %W[wrk -t#{clients} -c#{clients} -d#{seconds}s --timeout 60s --latency -s #{SCRIPT} #{url}]
      pause_ms ? [*words, "--", pause_ms.to_s] : words
    end

    def run(url, **load)
      output = IO.popen(command(url, **load)) { |wrk| read_to_end(wrk) }
      raise "wrk failed: #{$?}" unless $?.success?

      Wrk.read(output).slice(:requests, :failed, :p50_ms, :p99_ms)
    end

    private

    # An interrupted caller does not wait for the end of the load.
    def read_to_end(wrk)
      output = wrk.read
    ensure
      Process.kill(:TERM, wrk.pid) unless output
    end
  end
end
