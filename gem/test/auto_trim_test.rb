# frozen_string_literal: true

require_relative "test_helper"
require_relative "../../testkit/ruby/extension"

# AutoTrim returns memory, at a bounded cost.
class AutoTrimTest < Minitest::Test
  SLOW_MALLINFO = File.join(__dir__, "native/slow_mallinfo.c")

  def test_memory_of_a_burst_is_given_back_in_quiet_times
    stats = run_ruby(<<~RUBY)
      GC.start
      before = Rbloat.rss_bytes
      Rbloat::AutoTrim.start
      burst
      raise "a burst leaves nothing" if Rbloat.rss_bytes < before + 50_000_000 && Rbloat::AutoTrim.stats[:trims].zero?
      wait_until { Rbloat.rss_bytes < before + 30_000_000 }
      wait_until { Rbloat::AutoTrim.stats[:returned_bytes] > 50_000_000 }
      Rbloat::AutoTrim.stats
    RUBY
    assert_operator stats["last_returned_bytes"], :<=, stats["returned_bytes"]
    assert_operator stats["trims"], :>, 0
  end

  def test_the_environment_starts_it
    assert run_ruby("Rbloat::AutoTrim.running?", env: { "RBLOAT_AUTO_TRIM" => "1" })
    refute run_ruby("Rbloat::AutoTrim.running?")
  end

  # Sweeps are lazy. A trim waited for a moment without any, which busy programs rarely have.
  def test_a_busy_process_is_trimmed_while_a_sweep_is_in_progress
    state = run_ruby(<<~RUBY)
      burst
      GC.start(immediate_sweep: false)
      Rbloat::AutoTrim.start(share: 1.0)
      100.times do
        break if Rbloat::AutoTrim.stats[:trims].positive?

        next_look = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 0.2
        1 while Process.clock_gettime(Process::CLOCK_MONOTONIC) < next_look
      end
      raise "no trim" if Rbloat::AutoTrim.stats[:trims].zero?
      GC.latest_gc_info(:state)
    RUBY
    assert_equal "sweeping", state
  end

  def test_stop_and_start_again
    states = run_ruby(<<~RUBY)
      threads = lambda do
        Dir["/proc/self/task/*/comm"].count { |file| File.read(file).start_with?("rbloat-trim") }
      rescue Errno::ENOENT, Errno::ESRCH
        retry
      end
      Array.new(3) do
        2.times { Rbloat::AutoTrim.start }
        runs = Rbloat::AutoTrim.running?
        # The thread sets its own name, and the kernel still lists a joined thread for a moment.
        wait_until { threads.call == 1 }
        2.times { Rbloat::AutoTrim.stop }
        wait_until { threads.call.zero? }
        [runs, Rbloat::AutoTrim.running?]
      end
    RUBY
    assert_equal [[true, false]] * 3, states
  end

  def test_each_forked_worker_trims_by_itself
    answers = run_ruby(<<~RUBY)
      Rbloat::AutoTrim.start
      pipes = Array.new(2) do
        reader, writer = IO.pipe
        fork do
          burst
          wait_until { Rbloat::AutoTrim.stats[:returned_bytes] > 50_000_000 }
          # Forks again, as daemons do.
          Process.wait(fork { burst; wait_until { Rbloat::AutoTrim.stats[:returned_bytes] > 50_000_000 }; exit!(7) })
          writer.puts $?.exitstatus
          exit!(0)
        end
        reader
      end
      pipes.map { |reader| reader.gets.to_i }
    RUBY
    assert_equal [7, 7], answers
  end

  def test_a_fork_in_the_midst_of_trims
    answer = run_ruby(<<~RUBY)
      Rbloat::AutoTrim.start(least_bytes: 1, share: 1.0)
      statuses = Array.new(20) do
        burst(2_000)
        Rbloat::AutoTrim.quiet!
        Process.wait(fork { GC.start; Rbloat::AutoTrim.stop; exit!(5) })
        $?.exitstatus
      end
      statuses.uniq
    RUBY
    assert_equal [5], answer
  end

  # Up to Ruby 3.2 any GC hook makes every allocation slower.
  def test_no_event_of_the_gc_is_listened_to
    skip "from Ruby 3.3 on a GC hook costs nothing" if RUBY_VERSION >= "3.3"
    library = File.binread($LOADED_FEATURES.grep(%r{/rbloat/rbloat\.so\z}).first)
    assert_includes library, "rb_gc_count"
    refute_match(/rb_tracepoint_new|rb_add_event_hook/, library)
  end

  # The first rb_gc_stat of a process creates symbols. Within the GC that was a "[BUG] object allocation during garbage
  # collection phase".
  def test_the_first_gc_stat_is_not_within_the_gc
    answer = run_ruby(<<~RUBY, prelude: 'require "json"; require "rbloat"')
      Rbloat::AutoTrim.start
      GC.start
      GC.stress = true
      50.times { "x" * 100 }
      GC.stress = false
      true
    RUBY
    assert answer
  end

  def test_it_ends_with_the_process_however_that_ends
    ["exit", "exit!", "Process.kill(:KILL, $$)", "raise", "exec('true')", "Thread.new { exit }.join"].each do |ending|
      program = "require 'rbloat'; Rbloat::AutoTrim.start; GC.start; Thread.new { loop { 'x' * 3_000 } }; #{ending}"
      _output, errors, status = Open3.capture3(*ruby, "-e", program)
      refute_match(/\[BUG\]|Segmentation/, errors)
      assert_includes [nil, 0, 1], status.exitstatus, errors
    end
  end

  # The thread read counts of a GC that was already destroyed: an occasional segmentation fault at the end of a process.
  def test_its_thread_ends_before_ruby_does
    program = <<~RUBY
      require "rbloat"
      # at_exit blocks run in reverse order.
      at_exit { print Rbloat::AutoTrim.running? }
      at_exit { Rbloat::AutoTrim.start }
      2.times do
        Rbloat::AutoTrim.stop
        Rbloat::AutoTrim.start
      end
    RUBY
    output, errors, status = Open3.capture3(*ruby, stdin_data: program)
    assert_equal ["false", "", true], [output, errors, status.success?]
  end

  # The number of malloc's arenas after eight threads have allocated.
  def arenas(start, env: {})
    needs "fiddle"
    run_ruby(<<~RUBY, env: { "MALLOC_ARENA_MAX" => nil, **env })
      require "fiddle"
      #{start}
      # A thread that ended would leave its arena to the next one.
      allocated = Queue.new
      over = Queue.new
      threads = Array.new(8) { Thread.new { allocated << ("x" * 100_000); over.pop } }
      8.times { allocated.pop }
      over.close
      threads.each(&:join)
      Fiddle::Function.new(Fiddle.dlopen(nil)["malloc_stats"], [], Fiddle::TYPE_VOID).call
    RUBY
    errors.scan(/^Arena \d+:/).size
  end

  def test_it_limits_the_arenas_unless_the_environment_does
    assert_operator arenas(""), :>, 4
    assert_equal 1, arenas("Rbloat::AutoTrim.start")
    assert_equal 2, arenas("Rbloat::AutoTrim.start(arenas: 2)")
    assert_operator arenas("Rbloat::AutoTrim.start(arenas: nil)"), :>, 4
    assert_equal 3, arenas("Rbloat::AutoTrim.start", env: { "MALLOC_ARENA_MAX" => "3" })
    assert_equal 3, arenas("Rbloat::AutoTrim.start", env: { "GLIBC_TUNABLES" => "glibc.malloc.arena_max=3" })
  end

  def test_wrong_arguments_are_refused
    assert_raises(ArgumentError) { Rbloat::AutoTrim.start(arenas: 0) }
    assert_raises(ArgumentError) { Rbloat::AutoTrim.start(share: 0) }
    assert_raises(ArgumentError) { Rbloat::AutoTrim.start(share: 2) }
    assert_raises(ArgumentError) { Rbloat::AutoTrim.start(pressure: 0) }
  end

  # The CPU time of AutoTrim's thread, and the credit after a later look. A share of almost 0 earns nothing.
  SPENT = <<~'RUBY'
    def own_seconds
      tasks = Dir["/proc/self/task/*"].select { |task| File.read("#{task}/comm") == "rbloat-trim\n" }
      tasks.sum { |task| File.read("#{task}/schedstat").to_i / 1e9 }
    end

    def credit_after_a_look
      before = Rbloat::AutoTrim.stats[:credit_seconds]
      wait_until { Rbloat::AutoTrim.stats[:credit_seconds] != before }
      Rbloat::AutoTrim.stats[:credit_seconds]
    end
  RUBY

  # Looks in idle time, and checks that led to no look, were free.
  def test_everything_that_its_thread_does_is_paid_from_its_budget
    skip "needs glibc's malloc" unless glibc?
    own, paid = run_ruby(<<~RUBY)
      #{SPENT}
      Rbloat::AutoTrim.start(share: 1e-9)
      credit = credit_after_a_look
      own = own_seconds
      burst
      2.times { credit_after_a_look }
      [own_seconds - own, credit - credit_after_a_look]
    RUBY
    assert_operator own, :>, 0
    assert_operator paid, :>=, own * 0.999
  end

  def test_a_restart_forgets_no_debts
    skip "needs glibc's malloc" unless glibc?
    before, after = run_ruby(<<~RUBY)
      #{SPENT}
      Rbloat::AutoTrim.start(share: 1e-9)
      burst
      credit_after_a_look
      Rbloat::AutoTrim.stop
      before = Rbloat::AutoTrim.stats[:credit_seconds]
      Rbloat::AutoTrim.start(share: 1e-9)
      [before, credit_after_a_look]
    RUBY
    assert_operator before, :<, 0
    assert_operator after, :<=, before
  end

  # A share of almost 0 allows only trims near the limit.
  def test_near_the_memory_limit_survival_beats_speed
    %w[100 900].zip([false, true]).each do |used, trims|
      Dir.mktmpdir do |folder|
        File.write("#{folder}/memory.current", used)
        File.write("#{folder}/memory.stat", "anon 1\ninactive_file 10\n")
        answer = run_ruby(<<~RUBY)
          group = Rbloat::Cgroup.new(limit: 1_000, usage: "#{folder}/memory.current",
                                     statistics: "#{folder}/memory.stat", cache_word: "inactive_file")
          Rbloat::AutoTrim.start(share: 1e-9, cgroup: group)
          burst
          #{trims ? 'wait_until { Rbloat::AutoTrim.stats[:trims].positive? }' : 'sleep 0.5'}
          Rbloat::AutoTrim.stats[:trims_under_pressure].positive?
        RUBY
        assert_equal trims, answer
      end
    end
  end

  # Twenty times a second malloc walked 2 million free chunks with the locks of the arenas held, and throughput fell by
  # 90 %. Here each look takes 50 ms of CPU time, on any machine.
  def test_looks_near_the_memory_limit_are_paid_from_a_budget
    skip "needs glibc's malloc" unless glibc?
    Dir.mktmpdir do |folder|
      File.write("#{folder}/memory.current", "870")
      env = { **preload(Extension.compile(SLOW_MALLINFO)), "RBLOAT_TEST_MALLINFO_MS" => "50" }
      looks, spent, elapsed = run_ruby(<<~RUBY, env: env)
        group = Rbloat::Cgroup.new(limit: 1_000, usage: "#{folder}/memory.current")
        Rbloat::AutoTrim.start(cgroup: group)
        wait_until { Rbloat::AutoTrim.stats[:looks].positive? }
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        before = Rbloat::AutoTrim.stats
        sleep 2
        after = Rbloat::AutoTrim.stats
        [after[:looks] - before[:looks], after[:look_seconds] - before[:look_seconds],
         Process.clock_gettime(Process::CLOCK_MONOTONIC) - started]
      RUBY
      assert_operator spent, :<=, 0.1 + (0.2 * elapsed), "#{looks} looks in #{elapsed} s"
    end
  end

  # A trim of 1 MiB, which makes no difference to whether the limit is reached, counted as useful. So looks never became
  # rarer.
  def test_a_small_trim_near_a_distant_limit_is_not_worth_it
    Dir.mktmpdir do |folder|
      File.write("#{folder}/memory.current", (0.87 * (1 << 36)).to_i.to_s)
      stats = run_ruby(<<~RUBY)
        group = Rbloat::Cgroup.new(limit: 1 << 36, usage: "#{folder}/memory.current")
        Rbloat::AutoTrim.start(cgroup: group)
        burst
        before = Rbloat::AutoTrim.stats[:looks]
        wait_until { Rbloat::AutoTrim.stats[:looks] > before + 2 }
        Rbloat::AutoTrim.stats
      RUBY
      assert_equal 0, stats["trims"]
      assert_operator stats["expected_bytes"], :>, 10 << 20
    end
  end

  def test_the_cache_of_files_is_no_pressure
    Dir.mktmpdir do |folder|
      File.write("#{folder}/memory.current", "950")
      File.write("#{folder}/memory.stat", "anon 1\ninactive_file_more 1\ninactive_file 300\n")
      answer = run_ruby(<<~RUBY)
        group = Rbloat::Cgroup.new(limit: 1_000, usage: "#{folder}/memory.current",
                                   statistics: "#{folder}/memory.stat", cache_word: "inactive_file")
        Rbloat::AutoTrim.start(cgroup: group)
        burst
        wait_until { Rbloat::AutoTrim.stats[:trims].positive? }
        Rbloat::AutoTrim.stats[:trims_under_pressure]
      RUBY
      assert_equal 0, answer
    end
  end

  def test_ractors_and_threads_go_on_beside_it
    skip "Ractor came with Ruby 3.0" unless defined?(Ractor)
    answer = run_ruby(<<~RUBY, options: ["-W0"])
      Rbloat::AutoTrim.start(share: 1.0, least_bytes: 1)
      ractors = Array.new(2) { Ractor.new { Array.new(20_000) { |n| "x" * (n % 3_000) }; Rbloat::AutoTrim.running? } }
      burst
      ractors.map { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
    RUBY
    assert_equal [true, true], answer
  end

  def test_a_forced_process_survives_compaction_and_stress
    answer = run_ruby(<<~RUBY)
      Rbloat::AutoTrim.start(share: 1.0, least_bytes: 1)
      kept = Array.new(1_000) { |n| "x" * n }
      GC.respond_to?(:compact) && GC.compact
      GC.stress = true
      20.times { Array.new(10) { "x" * 2_000 } }
      GC.stress = false
      kept.each_with_index.all? { |string, n| string.size == n }
    RUBY
    assert answer
  end

  # Process.warmup compacts, which not all extensions survive.
  def test_forks_are_prepared_by_a_warmup_only_if_that_is_wanted
    assert_equal [0, 1], run_ruby(<<~RUBY)
      $warmups = 0
      def Process.warmup; $warmups += 1; end
      Rbloat::AutoTrim.prepare_fork
      counts = [$warmups]
      Rbloat::AutoTrim.prepare_fork(warmup: true)
      counts << $warmups
    RUBY
  end

  def test_it_knows_that_a_warmup_has_trimmed
    skip "Process.warmup came with Ruby 3.3" unless Process.respond_to?(:warmup)
    # A burst leaves 143 MiB of free pages, and 10 MiB of pages that are partly free, which no trim can return.
    stats = run_ruby(<<~RUBY)
      Rbloat::AutoTrim.start(least_bytes: 64_000_000)
      burst
      Process.warmup
      sleep 1
      Rbloat::AutoTrim.stats
    RUBY
    assert_equal 0, stats["useless_trims"]
  end
end
