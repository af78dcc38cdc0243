# frozen_string_literal: true

require_relative "test_helper"
require_relative "../../testkit/ruby/extension"

# Concurrent starts, stops and forks of the gem's threads. RBLOAT_TEST_STARTS and RBLOAT_TEST_FORKS set their number.
class ThreadsTest < Minitest::Test
  STARTS = Integer(ENV.fetch("RBLOAT_TEST_STARTS", 400))
  FORKS = Integer(ENV.fetch("RBLOAT_TEST_FORKS", 40))
  SLOW_MALLINFO = File.join(__dir__, "native/slow_mallinfo.c")
  FORKED = File.join(__dir__, "native/forked.c")

  # Seconds after which a program is killed because it hangs. Generous, for slow machines.
  DEADLINE = 60 + ((STARTS + FORKS) / 2)

  HELPERS = <<~'RUBY'
    SERVICES = [Rbloat::AutoTrim, Rbloat::NativePressure].freeze

    # The number of the gem's native threads, by their names, which they set themselves.
    def native_threads
      Dir["/proc/self/task/*/comm"].count { |file| File.read(file).match?(/\Arbloat-(trim|pressure)/) }
    rescue Errno::ENOENT, Errno::ESRCH
      retry
    end

    def start_all
      Rbloat::AutoTrim.start(share: 1.0, least_bytes: 1, cgroup: nil)
      Rbloat::NativePressure.start
    end
  RUBY

  def setup
    skip "the threads need glibc's malloc" unless glibc?
  end

  def run_threads(code, env: {}, options: [])
    limited = ["timeout", "--signal=KILL", DEADLINE.to_s]
    run_ruby("#{HELPERS}\n#{code}", env: env, options: options, before: limited)
  end

  # A start while the previous thread was stopping shared its state, and joining that thread never returned.
  def test_starts_and_stops_by_many_threads
    answer = run_threads(<<~RUBY)
      threads = Array.new(8) do |index|
        Thread.new do
          (#{STARTS} / 8).times { |round| (index + round).even? ? start_all : SERVICES.each(&:stop) }
        end
      end
      threads.each(&:join)
      SERVICES.each(&:stop)
      wait_until { native_threads.zero? }
      start_all
      wait_until { native_threads == 2 && Rbloat::NativePressure.stats[:looks].positive? }
      SERVICES.map(&:running?)
    RUBY
    assert_equal [true, true], answer
  end

  def test_starts_and_stops_by_many_ractors
    skip "Ractor came with Ruby 3.0" unless defined?(Ractor)
    answer = run_threads(<<~RUBY, options: ["-W0"])
      ractors = Array.new(4) do
        Ractor.new do
          50.times do
            Rbloat::AutoTrim.start(cgroup: nil)
            Rbloat::AutoTrim.stop
          end
          Rbloat::AutoTrim.running?
        end
      end
      ractors.each { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
      Rbloat::AutoTrim.stop
      wait_until { native_threads.zero? }
      Rbloat::AutoTrim.running?
    RUBY
    refute answer
  end

  def test_starts_and_stops_under_gc_stress
    answer = run_threads(<<~RUBY)
      GC.stress = true
      3.times do
        start_all
        Rbloat::AutoTrim.quiet!
        Rbloat.stats
        SERVICES.each(&:stop)
      end
      GC.stress = false
      SERVICES.map(&:running?)
    RUBY
    assert_equal [false, false], answer
  end

  def test_forks_beside_starts_and_stops
    statuses = run_threads(<<~RUBY)
      over = false
      start_all
      restarts = Thread.new do
        until over
          Rbloat::AutoTrim.stop
          Rbloat::AutoTrim.start(share: 1.0, least_bytes: 1, cgroup: nil)
        end
      end
      churn = Thread.new { sleep(0.001) && Array.new(100) { |size| "x" * (size * 50) } until over }
      statuses = Array.new(#{FORKS}) do
        child = fork do
          start_all
          alive = SERVICES.all?(&:running?)
          SERVICES.each(&:stop)
          exit!(alive ? 7 : 8)
        end
        Process.wait(child)
        $?.exitstatus
      end
      over = true
      [restarts, churn].each(&:join)
      statuses.uniq
    RUBY
    assert_equal [7], statuses
  end

  # The thread was inside malloc, and neither Timeout nor Ctrl-C could interrupt the join.
  def test_a_stop_can_be_interrupted
    Dir.mktmpdir do |folder|
      hold = "#{folder}/hold"
      env = { **preload(Extension.compile(SLOW_MALLINFO)), "RBLOAT_TEST_MALLINFO_HOLD" => hold }
      answer = run_threads(<<~RUBY, env: env)
        require "timeout"
        File.write("#{hold}", "")
        Rbloat::AutoTrim.start(cgroup: nil)
        interrupted = begin
          Timeout.timeout(0.2) { Rbloat::AutoTrim.stop }
          false
        rescue Timeout::Error
          File.exist?("#{hold}")
        end
        states = [Rbloat::AutoTrim.running?]
        # A start does not wait for the end of the previous thread.
        Rbloat::AutoTrim.start(cgroup: nil)
        states << Rbloat::AutoTrim.running?
        wait_until { native_threads == 2 }
        File.delete("#{hold}")
        wait_until { native_threads == 1 }
        [interrupted, *states]
      RUBY
      assert_equal [true, false, true], answer
    end
  end

  # The methods looked for the thread of the cloned module, which has none: a segmentation fault.
  def test_a_clone_of_a_module_is_as_good
    answer = run_threads(<<~RUBY)
      Rbloat::AutoTrim.start
      trim, pressure, malloc, root = [*SERVICES, Rbloat.const_get(:Malloc), Rbloat].map(&:clone)
      before = [trim.running?, pressure.running?, pressure.start, Rbloat::NativePressure.running?]
      [trim, pressure].each { |clone| clone.stats.fetch(:looks) }
      trim.quiet!
      malloc.counts.fetch(1)
      malloc.exact_in_use
      [root.trim, root.stats.fetch(:rss_bytes)]
      [trim, pressure].each(&:stop)
      before + SERVICES.map(&:running?)
    RUBY
    assert_equal [true, false, true, true, false, false], answer
  end

  # Children that were forked to run another program started two threads.
  def test_a_fork_that_ruby_does_not_make_has_no_threads
    skip "Process._fork came with Ruby 3.1" unless Process.respond_to?(:_fork)
    answer = run_threads(<<~RUBY)
      require "#{Extension.compile(FORKED)}"
      start_all
      wait_until { native_threads == 2 }
      [Forked.threads, native_threads]
    RUBY
    assert_equal [1, 2], answer
  end

  def test_each_way_of_ruby_to_fork_starts_them_again
    answers = run_threads(<<~'RUBY')
      start_all
      tell = lambda do |pipe|
        wait_until { native_threads == 2 }
        pipe.puts SERVICES.map(&:running?).inspect
        pipe.flush
        exit!(0)
      end
      ways = {
        fork: ->(pipe) { fork { tell.call(pipe) } },
        popen: ->(pipe) { IO.popen("-") { |child| tell.call(pipe) unless child } },
        daemon: ->(pipe) { fork { Process.daemon(true, true); tell.call(pipe) } }
      }
      ways.transform_values do |way|
        reader, writer = IO.pipe
        way.call(writer)
        writer.close
        reader.gets.to_s.chomp
      end
    RUBY
    assert_equal({ "fork" => "[true, true]", "popen" => "[true, true]", "daemon" => "[true, true]" }, answers)
  end

  def test_a_stopped_one_stays_stopped_in_forked_processes
    answer = run_threads(<<~RUBY)
      start_all
      Rbloat::AutoTrim.stop
      child = fork do
        wait_until { native_threads == 1 }
        exit!(SERVICES.map(&:running?) == [false, true] ? 7 : 8)
      end
      Process.wait(child)
      $?.exitstatus
    RUBY
    assert_equal 7, answer
  end
end
