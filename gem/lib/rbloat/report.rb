# frozen_string_literal: true

require "json"
require "open3"

# The report on this process.
module Rbloat
  # The program `rbloat`, which reports where the memory of a process is.
  # @api private
  module Program
    # The program in the gem, if the gem was built with it.
    CARRIED = File.expand_path("../../libexec/rbloat", __dir__).freeze
    # The exit status after a report that lacks a part of the process.
    INCOMPLETE = 6

    class << self
      # Finds the program: first RBLOAT_BINARY, then the program in the gem, then the PATH.
      # @return [String] the path
      # @raise [Error] if it was not found
      def path
        named = ENV.fetch("RBLOAT_BINARY", "")
        found = named.empty? ? [CARRIED, *in_path].find { |file| executable?(file) } : named
        return found if found && executable?(found)

        raise Error, "cannot run RBLOAT_BINARY=#{named}: not an executable file" unless named.empty?

        raise Error, "cannot find the program rbloat: add it to the PATH, or set RBLOAT_BINARY to its path"
      end

      # @return [Array(String, Boolean)] the standard output, and false if a part of the process could not be read
      # @raise [Error] if the program fails, with its error message
      def run(*arguments)
        output, errors, status = Open3.capture3(path, *arguments)
        return [output, status.success?] if status.success? || status.exitstatus == INCOMPLETE

        raise Error, "#{errors.strip} (#{status})"
      end

      private

      def in_path
        ENV.fetch("PATH", "").split(File::PATH_SEPARATOR).map { |folder| File.join(folder, "rbloat") }
      end

      def executable?(file)
        File.file?(file) && File.executable?(file)
      end
    end
  end
  private_constant :Program

  class << self
    # Returns the report of `rbloat report --json` on this process: all resident memory by cause, a verdict, and
    # advice. docs/json.md describes the keys. `complete` is false if a part of the process could not be read; then
    # `findings` or `capture` say why. The process is paused briefly, or a forked copy of it is read. Meanwhile any
    # process of the same user may attach to this one.
    #
    # @param options [Array<String>] more options for `rbloat report`
    # @return [Hash{Symbol => Object}]
    # @raise [Error] if the program was not found or failed
    def report(*options)
      native_allow_report do
        output, complete = Program.run("report", Process.pid.to_s, "--json", *options)
        JSON.parse(output, symbolize_names: true).merge(complete: complete)
      end
    end

    # Allows other processes of the same user to attach to this one, as `rbloat report PID` does, if Yama restricts that
    # (`/proc/sys/kernel/yama/ptrace_scope` is 1). Forked processes do not inherit the permission.
    #
    # @param pid [Integer, Symbol] the process that may attach, or `:any`, or `:none`
    # @return [Boolean] true if the kernel has Yama; otherwise no permission is needed
    def allow_attach(pid = :any)
      tracer = { any: -1, none: 0 }.fetch(pid, pid)
      valid = tracer.is_a?(Integer) && tracer >= -1
      raise ArgumentError, "expected a process id, :any or :none, got #{pid.inspect}" unless valid

      native_allow_attach(tracer)
    end

    # Returns figures for metrics: RSS, and the counts of {AutoTrim.stats} and {NativePressure.stats} with the prefixes
    # `auto_trim_` and `native_pressure_`. This takes microseconds. The hash is flat, and all values are numbers.
    #
    # @return [Hash{Symbol => Numeric}]
    def stats
      services = { auto_trim: AutoTrim.stats, native_pressure: NativePressure.stats }
      services.each_with_object({ rss_bytes: rss_bytes || 0 }) do |(service, counts), all|
        counts.each { |name, count| all[:"#{service}_#{name}"] = count }
      end
    end

    # Returns malloc's memory in use and free. `returnable_bytes` is an upper bound of the memory that a trim would
    # return to the kernel; {report} has the exact number. This walks malloc's free lists, which takes longer the more
    # free chunks there are.
    #
    # @return [Hash{Symbol => Integer}]
    # @raise [UnsupportedError] if malloc is not glibc's
    def malloc_stats
      Malloc.check("malloc_stats")
      in_use, free = Malloc.counts
      { in_use_bytes: in_use, free_bytes: free, returnable_bytes: [free, unexplained_bytes(in_use)].min.clamp(0, free) }
    end

    private

    # Resident memory that is neither in use by malloc nor in Ruby's heap pages.
    def unexplained_bytes(in_use)
      anonymous_bytes - in_use - (GC.stat(:heap_allocated_pages) * Malloc.page_bytes)
    end
  end
end
