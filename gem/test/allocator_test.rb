# frozen_string_literal: true

require "etc"
require_relative "test_helper"

# The name of the allocator, and its statistics.
class AllocatorTest < Minitest::Test
  def test_glibc_is_known
    assert_equal "glibc", Rbloat.allocator
  end

  # mallinfo counts modulo 4 GiB, mallinfo2 does not.
  def test_more_than_4_gib
    version = Etc.confstr(Etc::CS_GNU_LIBC_VERSION)[/[\d.]+/]
    skip "glibc #{version} has no mallinfo2" if Gem::Version.new(version) < Gem::Version.new("2.33")
    assert_operator run_ruby(<<~RUBY), :>, 5 << 30
      string = String.new(capacity: 5 << 30)
      Rbloat.malloc_stats[:in_use_bytes]
    RUBY
  end

  def test_jemalloc_is_known
    answer = run_ruby("[Rbloat.allocator, Rbloat.const_get(:Malloc).counts]", env: { "LD_PRELOAD" => jemalloc })
    assert_equal ["jemalloc", nil], answer
  end

  # Counts jemalloc's background threads.
  BACKGROUND = <<~'RUBY'
    def background
      Dir["/proc/self/task/*/comm"].count { |file| File.read(file).start_with?("jemalloc_bg") }
    rescue Errno::ENOENT, Errno::ESRCH
      retry
    end
  RUBY

  def test_under_jemalloc_auto_trim_is_its_background_thread
    answer = run_ruby(<<~RUBY, env: { "LD_PRELOAD" => jemalloc })
      #{BACKGROUND}
      started = [background, Rbloat::AutoTrim.start, Rbloat::AutoTrim.running?]
      wait_until { background.positive? }
      Rbloat::AutoTrim.stop
      wait_until { background.zero? }
      [started, Rbloat::AutoTrim.running?, Rbloat::AutoTrim.start]
    RUBY
    assert_equal [[0, true, true], false, true], answer
    assert_empty errors
  end

  def test_jemallocs_background_thread_runs_in_forked_processes_and_stays_if_it_was_there_before
    skip "Process._fork came with Ruby 3.1" unless Process.respond_to?(:_fork)
    answer = run_ruby(<<~RUBY, env: { "LD_PRELOAD" => jemalloc, "MALLOC_CONF" => "background_thread:true" })
      #{BACKGROUND}
      Rbloat::AutoTrim.start
      Process.wait(fork { wait_until { background.positive? }; exit!(7) })
      Rbloat::AutoTrim.stop
      [$?.exitstatus, background.positive?]
    RUBY
    assert_equal [7, true], answer
  end

  def test_trim_returns_what_jemalloc_holds
    returned, before, after = run_ruby(<<~RUBY, env: { "LD_PRELOAD" => jemalloc, "MALLOC_CONF" => "dirty_decay_ms:-1" })
      burst
      before = Rbloat.rss_bytes
      [Rbloat.trim, before, Rbloat.rss_bytes]
    RUBY
    assert_operator returned, :>, 50_000_000
    assert_operator after, :<=, before - (returned / 2)
  end

  def test_exact_in_use_counts_what_lives_and_not_what_is_cached
    in_use = run_ruby(<<~RUBY)
      GC.disable
      before = Rbloat.const_get(:Malloc).exact_in_use
      kept = Array.new(1_000) { "x" * 5_000 }
      between = Rbloat.const_get(:Malloc).exact_in_use
      kept.each(&:clear)
      kept.each { |string| string.replace("") }
      [between - before, kept.size]
    RUBY
    assert_includes 5_000_000..5_200_000, in_use.first
  end

  def test_trim_returns_what_malloc_holds
    returned, before, after = run_ruby(<<~RUBY)
      burst
      before = Rbloat.rss_bytes
      [Rbloat.trim, before, Rbloat.rss_bytes]
    RUBY
    assert_operator returned, :>, 50_000_000
    assert_operator after, :<=, before - (returned / 2)
  end
end
