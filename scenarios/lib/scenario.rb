# frozen_string_literal: true

require "json"
require "objspace"
require "optparse"

# The options of scenarios, and their protocol, which scenarios/README.md describes.
module Scenario
  @parked = Queue.new

  # Otherwise a thread that fails would never park, and the driver would wait forever.
  Thread.abort_on_exception = true

  # A driver that stops a scenario early must not see a failure. exit!, because unwinding hundreds of threads takes
  # seconds.
  %w[INT TERM].each { |signal| trap(signal) { exit!(0) } }

  class << self
    # Runs the block, which gets the scale, creates the state, and returns the facts that only this scenario knows. Then
    # prints the facts and waits. +commands+ are the requests that a driver may make: names with callables that return
    # the answer. Without +settle+ garbage stays. +expect+ is the cause of the verdict, which the test of the scenarios reads.
    def run(expect: nil, commands: {}, settle: true)
      facts = yield(read_scale)
      collect if settle
      tell({ scenario: name, pid: Process.pid, expect: expect }.compact.merge(measurements, facts))
      warn(hint) if $stdin.tty?
      answer({ "trim" => method(:trim), "compact" => method(:compact) }.merge(commands))
      exit!(0)
    end

    # Runs the block in +count+ threads, each with its index, and returns when all have finished it. The threads stay
    # parked, like those of a server's pool.
    def in_threads(count)
      count.times do |index|
        Thread.new do
          yield(index)
          park
        end
      end
      count.times { @parked.pop }
    end

    # Parks the calling thread forever, at the current depth of its stack.
    def park
      @parked << true
      sleep
    end

    def rss_bytes
      File.read("/proc/self/smaps_rollup")[/^Rss:\s+(\d+) kB$/, 1].to_i * 1024
    end

    private

    def name
      File.basename($PROGRAM_NAME, ".rb")
    end

    def read_scale
      scale = 1.0
      OptionParser.new do |options|
        options.banner = "usage: ruby #{$PROGRAM_NAME} [--scale FACTOR]"
        options.on("--scale FACTOR", Float, "size of the state, 1 is the default") { |factor| scale = factor }
      end.parse!
      scale
    end

    # Lets the GC finish, so that the state has no garbage and no pending lazy sweep. More than once, because a stale
    # word on the stack may retain a dead object the first time.
    def collect
      3.times { GC.start }
    end

    def measurements
      objects = ObjectSpace.count_objects
      {
        ruby_version: RUBY_VERSION,
        threads: Dir.children("/proc/self/task").size,
        memsize_of_all_bytes: ObjectSpace.memsize_of_all,
        slots_live: objects[:TOTAL] - objects[:FREE],
        slots_free: objects[:FREE],
        rss_bytes: rss_bytes
      }
    end

    def hint
      <<~TEXT

        #{name} is ready and waits. In another terminal:  rbloat report #{Process.pid}
        Ctrl-D ends it.
      TEXT
    end

    def answer(commands)
      while (line = $stdin.gets)
        tell(commands.fetch(line.chomp).call)
      end
    end

    def tell(truth)
      $stdout.puts("ready #{JSON.generate(truth)}")
      $stdout.flush
    end

    # Compacts Ruby's heap. Each collection frees only a part of the empty pages.
    def compact
      GC.compact if GC.respond_to?(:compact)
      5.times { GC.start }
      { rss_bytes: rss_bytes }
    end

    # Calls malloc_trim(0), and returns RSS before and after it. Fiddle is loaded only here, because most scenarios
    # should be plain Ruby.
    def trim
      require "fiddle"
      address = Fiddle::Handle::DEFAULT["malloc_trim"]
      malloc_trim = Fiddle::Function.new(address, [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_INT)
      before = rss_bytes
      malloc_trim.call(0)
      { rss_before_bytes: before, rss_after_bytes: rss_bytes }
    end
  end
end
