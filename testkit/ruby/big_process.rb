# frozen_string_literal: true

require "json"
require "open3"
require "rbconfig"

# A running scenarios/big.rb, a large process that measures its own pauses.
class BigProcess
  PROGRAM = File.expand_path("../../scenarios/big.rb", __dir__)

  # The facts that the process printed about itself.
  attr_reader :facts

  # Yields the process, which ends after the block. Scale 1 has about 1.3 GiB. +preload+ is a library for malloc.
  def self.with(scale: 1.0, preload: nil)
    process = new(scale, preload)
    yield process
  ensure
    process&.stop
  end

  def initialize(scale, preload)
    environment = preload ? { "LD_PRELOAD" => preload } : {}
    @stdin, @stdout, @process = Open3.popen2(environment, RbConfig.ruby, PROGRAM, "--scale", scale.to_s)
    @facts = read
  end

  def pid
    @process.pid
  end

  # Returns the longest time in milliseconds for which the process did not run during the block.
  def longest_gap
    ask_gap
    yield
    # Time for the heartbeat that ends the gap.
    sleep 0.1
    ask_gap
  end

  # Returns the time in milliseconds that the process takes to fork itself.
  def fork_ms
    @stdin.puts("fork")
    read.fetch("fork_ms")
  end

  def rss_bytes
    File.read("/proc/#{pid}/smaps_rollup")[/^Rss:\s+(\d+) kB$/, 1].to_i * 1024
  end

  def stop
    @stdin.close
    @process.join
  end

  private

  def ask_gap
    @stdin.puts("gap")
    read.fetch("longest_ms")
  end

  def read
    line = @stdout.gets or raise "scenarios/big.rb ended"
    JSON.parse(line.delete_prefix("ready "))
  end
end
