# frozen_string_literal: true

require_relative "test_helper"
require_relative "../../testkit/ruby/extension"
require_relative "../../testkit/ruby/servers"

# NativePressure reports memory to the GC.
class NativePressureTest < Minitest::Test
  HOARD = File.join(__dir__, "native/hoard.c")
  SLOW_MALLINFO = File.join(__dir__, "native/slow_mallinfo.c")

  # With many retained objects the GC runs rarely. `churn` creates 2,000 objects of 98 KiB, keeps the last ten, and
  # returns the growth of RSS. Without pauses RSS could double before NativePressure looks, so it waits for looks.
  RETAINED = <<~'RUBY'
    RETAINED = Array.new(400_000) { |number| "string number #{number} of those that are retained" }
    RECENT = Array.new(10)
    3.times { GC.start }

    def wait_for_a_look
      return unless Rbloat::NativePressure.running?

      # The current one began earlier.
      before = Rbloat::NativePressure.stats[:looks]
      sleep 0.001 until Rbloat::NativePressure.stats[:looks] > before + 1
    end

    def churn(count = 2_000)
      before = Rbloat.rss_bytes
      most = 0
      count.times do |index|
        RECENT[index % 10] = yield
        wait_for_a_look if index % 20 == 19
        most = [most, Rbloat.rss_bytes].max if index % 100 == 99
      end
      most - before
    end
  RUBY

  def run_churn(code, env: {})
    run_ruby(<<~RUBY, env: env, options: ["-W0"])
      #{RETAINED}
      require "#{Extension.compile(HOARD)}"
      #{code}
    RUBY
  end

  # Up to Ruby 3.0 the GC waits for the program's next allocation with Ruby's malloc, and sweeps lazily.
  PROMPT = RUBY_VERSION >= "3.1"
  HOARDS = 'churn { "x" * 100; Hoard.new(100_000) }'
  # In bytes. Without NativePressure RSS rises by about 190 MiB.
  RISE = PROMPT ? 140_000_000 : 175_000_000

  def test_memory_that_is_not_reported_is_collected
    without, = run_churn("[#{HOARDS}]")
    with, told, freed = run_churn(<<~RUBY)
      Rbloat::NativePressure.start
      [#{HOARDS}, *Rbloat::NativePressure.stats.values_at(:told_bytes, :freed_bytes)]
    RUBY
    assert_operator without, :>, 180_000_000
    assert_operator with, :<, RISE
    assert_operator told, :>, 0
    assert_operator told, :>=, freed
  end

  # The claim of docs/c-extensions.md: the GC checks its limits only when the program allocates with Ruby's malloc.
  def test_a_gc_is_told_and_runs_only_if_rubys_malloc_is_called
    without, with = run_ruby(<<~RUBY, options: ["-W0"])
      require "#{Extension.compile(File.join(__dir__, 'native/bitmap.c'))}"
      [false, true].map do |is_rubys|
        GC.start
        before = GC.count
        2_000.times { Bitmap.make(1_000_000, is_rubys) }
        GC.count - before
      end
    RUBY
    assert_operator with, :>, 3 * [without, 3].max
  end

  def test_a_program_without_native_memory_is_told_nothing
    told = run_churn(<<~RUBY)
      Rbloat::NativePressure.start
      threads = Array.new(4) { |n| Thread.new { 200.times { Array.new(500) { |i| "x" * ((i * n) % 4_000) } } } }
      threads.each(&:join)
      100_000.times { |n| RETAINED[n] = "x" * (n % 500) }
      Rbloat::NativePressure.stats[:told_bytes]
    RUBY
    assert_equal 0, told
  end

  def test_it_works_in_forked_processes
    statuses = run_churn(<<~RUBY)
      Rbloat::NativePressure.start
      Array.new(2) do
        Process.wait(fork { exit!(#{HOARDS} < #{RISE} ? 7 : 8) })
        $?.exitstatus
      end
    RUBY
    assert_equal [7, 7], statuses
  end

  def test_it_works_with_threads_and_ractors
    rises = run_churn(<<~RUBY)
      Rbloat::NativePressure.start
      hoard = -> { 500.times { |n| "x" * 100; Hoard.new(100_000); n % 5 == 4 ? wait_for_a_look : sleep(0.001) } }
      threads = Array.new(4) { Thread.new(&hoard) }
      threads.each(&:join)
      if defined?(Ractor)
        ractor = Ractor.new { 500.times { "x" * 100; Hoard.new(100_000); sleep 0.001 }; 1 }
        ractor.respond_to?(:value) ? ractor.value : ractor.take
      end
      [Rbloat.rss_bytes]
    RUBY
    assert_operator rises.first, :<, 260_000_000
  end

  def test_memory_that_is_retained_is_told_once
    told, collections = run_churn(<<~RUBY)
      Rbloat::NativePressure.start
      GC.start
      before = GC.count
      kept = Array.new(1_000) { "x" * 100; Hoard.new(100_000) }
      sleep 0.5
      [Rbloat::NativePressure.stats[:told_bytes], GC.count - before, kept.size]
    RUBY
    assert_operator told, :<, 130_000_000
    assert_operator collections, :<, 20
  end

  # After each sweep malloc walked all free chunks, however long that took. Here a call takes 20 ms of CPU time. Calls
  # may take 2 % of the time, so there may be one each second.
  def test_asking_malloc_after_sweeps_stays_within_its_share
    skip "needs glibc's malloc" unless glibc?
    # Only the test runs the GC. After a major GC nothing would be outstanding.
    limits = %w[MALLOC_LIMIT MALLOC_LIMIT_MAX OLDMALLOC_LIMIT OLDMALLOC_LIMIT_MAX].to_h do |name|
      ["RUBY_GC_#{name}", (1 << 40).to_s]
    end
    env = { **preload(Extension.compile(SLOW_MALLINFO)), **limits, "RBLOAT_TEST_MALLINFO_MS" => "20" }
    told, asked, elapsed = run_churn(<<~RUBY, env: env)
      Rbloat::NativePressure.start
      kept = []
      wait_until do
        kept << Hoard.new(1_000_000)
        Rbloat::NativePressure.stats[:told_bytes].positive?
      end
      before = Rbloat::NativePressure.stats[:counts]
      started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      50.times do
        GC.start(full_mark: false)
        sleep 0.02
      end
      stats = Rbloat::NativePressure.stats
      [stats[:told_bytes], stats[:counts] - before, Process.clock_gettime(Process::CLOCK_MONOTONIC) - started]
    RUBY
    assert_operator told, :>, 0
    assert_operator asked, :<=, 2 + (1.5 * elapsed)
  end

  # Ruby bug 19991: a job that a native thread registers may be lost, or run another function.
  def test_no_job_is_registered_from_a_foreign_thread
    skip "from Ruby 3.3 on jobs are registered in advance" if RUBY_VERSION >= "3.3"
    library = File.binread($LOADED_FEATURES.grep(%r{/rbloat/rbloat\.so\z}).first)
    refute_match(/rb_postponed_job_register/, library)
  end

  INFORMERS = 'Thread.list.count { |thread| thread.name == "rbloat-inform" }'

  def test_a_parked_thread_informs_the_gc
    skip "only Ruby 3.1 and 3.2 need one" unless RUBY_VERSION.start_with?("3.1", "3.2")
    answers = run_churn(<<~RUBY)
      answers = [#{INFORMERS}]
      2.times { Rbloat::NativePressure.start }
      answers << #{INFORMERS}
      Process.wait(fork { exit!(#{INFORMERS} + 10) })
      answers << $?.exitstatus
      Thread.list.find { |thread| thread.name == "rbloat-inform" }.kill.join
      Rbloat::NativePressure.stop
      Rbloat::NativePressure.start
      answers << #{INFORMERS}
      Rbloat::NativePressure.stop
      wait_until { #{INFORMERS}.zero? }
      answers
    RUBY
    assert_equal [0, 1, 11, 1], answers
  end

  # Ruby's limits decide, so a disabled GC stays disabled.
  def test_a_disabled_gc_stays_disabled
    answer = run_churn(<<~RUBY)
      Rbloat::NativePressure.start
      GC.start
      GC.disable
      before = GC.count
      #{HOARDS}
      [GC.count - before, GC.disable]
    RUBY
    assert_equal [0, true], answer
  end

  def test_it_stops_before_ruby_does
    5.times do
      program = "require 'rbloat'; require '#{Extension.compile(HOARD)}'; Rbloat::NativePressure.start; " \
                "$kept = []; at_exit { 300.times { $kept << Hoard.new(100_000) } }; exit"
      _output, errors, status = Open3.capture3(*ruby, "-e", program)
      assert_equal ["", true], [errors, status.success?]
    end
  end

  def test_the_environment_starts_it_and_jemalloc_keeps_it_off
    program = "[Rbloat::NativePressure.running?, Rbloat::NativePressure.start]"
    assert_equal [true, true], run_ruby(program, env: { "RBLOAT_NATIVE_PRESSURE" => "1" })
    assert_equal [false, false], run_ruby(program, env: { "RBLOAT_NATIVE_PRESSURE" => "1", "LD_PRELOAD" => jemalloc })
    assert_equal 1, errors.scan("AutoTrim and NativePressure do nothing").size
  end

  def test_libpq_without_accounting
    skip "Ruby 3.0 checks its limits only when the program allocates with Ruby's malloc" unless PROMPT
    skip "PostgreSQL is not installed" if Dir["/usr/lib/postgresql/*/bin"].empty?
    rise = run_churn(<<~RUBY, env: Servers.postgres)
      require "#{Extension.compile(*Extension::LIBPQ_UNACCOUNTED)}"
      Rbloat::NativePressure.start
      churn(4_000) { Unaccounted.query("SELECT repeat('x', 1000) FROM generate_series(1, 100)") }
    RUBY
    assert_operator rise, :<, 300_000_000
  end

  def test_mysql2_queries
    need "mysql2"
    rise = run_churn(<<~RUBY, env: Servers.mariadb)
      require "mysql2"
      client = Mysql2::Client.new(socket: ENV["MYSQL_UNIX_PORT"])
      Rbloat::NativePressure.start
      rows = "WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 100) " \\
             "SELECT repeat('x', 1000) FROM ids"
      churn { client.query(rows) }
    RUBY
    assert_operator rise, :<, RISE
  end
end
