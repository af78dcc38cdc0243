# frozen_string_literal: true

require_relative "../../../testkit/ruby/process_counts"
require_relative "../../../testkit/ruby/statistics"
require_relative "block"

# Switches a running shop between modes, and measures the same block of requests in each. So all modes have the same
# process, with the same heap. The first block after a switch is not measured: it still pays for the mode before, by page
# faults on memory that was trimmed.
class Alternation
  # What the shop executes to enter a mode, and to leave it. RBLOAT_AUTO_TRIM, with which the shop starts, overrides the
  # configuration.
  MODES = {
    "off" => ["Rbloat.stop", "nil"],
    "gem" => ["Rbloat.start", "Rbloat.stop"],
    "growth" => ["Rbloat.stop; ENV['RBLOAT_AUTO_TRIM'] = '0'; Rbloat.configuration.growth = true; Rbloat.start",
                 "Rbloat.stop; ENV['RBLOAT_AUTO_TRIM'] = '1'; Rbloat.configuration.growth = false"],
    "sweep" => ["Rbloat.stop; TrimInGC.start('sweep')", "TrimInGC.stop"]
  }.freeze
  SIGNAL = "WINCH"
  PATIENCE = 30
  # Seconds between two readings of RSS.
  PERIOD = 0.2

  # The part of the program that the shop loads. A signal tells each process to read the mode.
  def self.prelude(folder, trim_in_gc, share = nil)
    <<~RUBY
      require "rbloat"
      #{"Rbloat.configuration.share = #{share}" if share}
      require #{trim_in_gc.inspect}
      module Alternation
        MODES = #{MODES.inspect}
        def self.enter(mode)
          eval(MODES.fetch(@mode).last) if @mode
          eval(MODES.fetch(@mode = mode).first)
          raise "AutoTrim does not follow the mode \#{mode}" if Rbloat::AutoTrim.running? != (mode == "gem")

          File.write("#{folder}/\#{Process.pid}.mode", mode)
        end
      end
      trap(#{SIGNAL.inspect}) { Thread.new { Alternation.enter(File.read("#{folder}/mode")) } }
    RUBY
  end

  # @param blocks [Integer] the number of blocks that are measured after each switch
  def initialize(server, folder, modes, blocks:)
    @pids = server.serving
    @folder = folder
    @modes = modes
    @blocks = blocks
    @block = Block.new(server.url)
    @runs = modes.to_h { |mode| [mode, []] }
  end

  # The figures of all rounds, by mode.
  attr_reader :runs

  # Measures each mode once, in an order that depends on the round. Returns the figures of each mode.
  def measure_round(round)
    (round.even? ? @modes : @modes.reverse).to_h do |mode|
      if mode != @mode
        enter(mode)
        @block.run
      end
      @runs[mode] << measure
      [mode, @runs[mode].last]
    end
  end

  private

  def enter(mode)
    File.write("#{@folder}/mode", mode)
    @pids.each { |pid| Process.kill(SIGNAL, pid) }
    limit = clock + PATIENCE
    until @pids.all? { |pid| File.exist?(file = "#{@folder}/#{pid}.mode") && File.read(file) == mode }
      raise "the shop did not enter the mode #{mode}" if clock > limit

      sleep 0.05
    end
    @mode = mode
  end

  def clock
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def measure
    before = ProcessCounts.of(@pids)
    samples = []
    thread = Thread.new { Array.new(@blocks) { @block.run } }
    samples << ProcessCounts.rss(@pids) until thread.join(PERIOD)
    blocks = thread.value
    grown = ProcessCounts.since(before, @pids)
    requests = blocks.sum(&:requests)
    times = blocks.flat_map(&:visit_ms).sort
    { cpu_ms: 1000 * (grown[:user] + grown[:system]) / requests, user_ms: 1000 * grown[:user] / requests,
      system_ms: 1000 * grown[:system] / requests, own_ms: 1000 * grown[:own] / requests,
      faults: grown[:faults].fdiv(requests), rss: samples.sum / samples.size, peak: samples.max,
      per_second: requests / blocks.sum(&:seconds), p50_ms: times[times.size / 2], p99_ms: times[times.size * 99 / 100],
      failed: blocks.sum(&:failed) }
  end
end
