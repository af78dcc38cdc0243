# frozen_string_literal: true

require "json"
require "open3"

# Where the memory of this process went.
module Rbloat
  # What went wrong with the program rbloat.
  class Error < StandardError; end

  # The program `rbloat`, which tells where the memory of a process went.
  module Program
    # Carried by the gem, where it was built with it.
    CARRIED = File.expand_path("../../libexec/rbloat", __dir__).freeze

    class << self
      # RBLOAT_BINARY names it; else it is the one that the gem carries, or that of the PATH.
      # @return [String] its path
      # @raise [Error] where there is none
      def path
        named = ENV.fetch("RBLOAT_BINARY", "")
        found = named.empty? ? [CARRIED, *in_path].find { |file| executable?(file) } : named
        return found if found && executable?(found)

        raise Error, "RBLOAT_BINARY names #{named}, which is no program" unless named.empty?

        raise Error, "the program rbloat was not found: put it into the PATH, or name it by RBLOAT_BINARY"
      end

      # @return [String] its standard output
      # @raise [Error] where it fails, with what it says
      def run(*arguments)
        output, errors, status = Open3.capture3(path, *arguments)
        return output if status.success?

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

  class << self
    # Where the memory of this process went: every resident byte, by cause, with a verdict and what to do. This is what
    # `rbloat report --json` prints; the process stands for a moment, or a clone of it is read (docs/json.md).
    #
    # @param options [Array<String>] further options of `rbloat report`
    # @return [Hash{Symbol => Object}]
    # @raise [Error] where the program is not found, or fails
    def report(*options)
      native_allow_report do
        JSON.parse(Program.run("report", Process.pid.to_s, "--json", *options), symbolize_names: true)
      end
    end

    # Lets other processes of the same user look into this one (`rbloat report PID`) where Yama forbids it
    # (`/proc/sys/kernel/yama/ptrace_scope` is 1). Not inherited by processes that are forked.
    #
    # @param pid [Integer, Symbol] of the process that may, or `:any`, or `:none`
    # @return [Boolean] whether the kernel knows of this: without Yama there is nothing to allow
    def allow_attach(pid = :any)
      tracer = { any: -1, none: 0 }.fetch(pid, pid)
      raise ArgumentError, "a pid, :any or :none, not #{pid.inspect}" unless tracer.is_a?(Integer) && tracer >= -1

      native_allow_attach(tracer)
    end

    # Figures for metrics, cheap enough for every minute. `unreturned_bytes` is at most what a trim would give back;
    # the report tells it exactly.
    #
    # @return [Hash{Symbol => Integer, nil}] those of malloc are nil where it is not glibc's
    def stats
      in_use, free = Malloc.counts
      {
        rss_bytes: rss_bytes, malloc_in_use_bytes: in_use, malloc_free_bytes: free,
        unreturned_bytes: free && [free, unexplained_bytes(in_use)].min.clamp(0, free),
        auto_trim: AutoTrim.stats, native_pressure: NativePressure.stats
      }
    end

    private

    # Resident memory that malloc does not have in use and Ruby's heap pages are not.
    def unexplained_bytes(in_use)
      anonymous_bytes - in_use - (GC.stat(:heap_allocated_pages) * Malloc.page_bytes)
    end
  end
end
