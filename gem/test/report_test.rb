# frozen_string_literal: true

require_relative "test_helper"

# The report on the own process, and figures for metrics.
class ReportTest < Minitest::Test
  BINARIES = %w[debug release dist].map { |profile| File.expand_path("../../target/#{profile}/rbloat", __dir__) }.freeze

  def binary
    ENV["RBLOAT_BINARY"] || BINARIES.find { |file| File.executable?(file) } || skip("rbloat was not built")
  end

  def test_the_books_of_the_process_balance
    causes, rss, pid, own, command = run_ruby(<<~RUBY, env: { "RBLOAT_BINARY" => binary })
      burst
      report = Rbloat.report
      [report[:causes].sum { |cause| cause[:bytes] }, report[:process][:rss_bytes], report[:process][:pid], Process.pid,
       report[:verdict][:cause]]
    RUBY
    assert_equal [rss, pid], [causes, own]
    assert_equal "malloc.unreturned", command
  end

  def test_options_are_passed_and_failures_told
    answer = run_ruby(<<~RUBY, env: { "RBLOAT_BINARY" => binary })
      report = Rbloat.report("--owners", "0", "--capture", "freeze", "--max-pause", "10s")
      failure = begin
        Rbloat.report("--nonsense")
      rescue Rbloat::Error => error
        error.message
      end
      [report[:capture][:method], failure]
    RUBY
    assert_equal "freeze", answer.first
    assert_match(/--nonsense/, answer.last)
  end

  # The report was dropped, with "(pid N exit 6)".
  def test_a_report_that_lacks_a_part_is_returned
    Dir.mktmpdir do |folder|
      program = "#{folder}/rbloat"
      File.write(program, %(#!/bin/sh\necho '{"causes": [1]}'\nexit ${STATUS}\n))
      File.chmod(0o755, program)
      { "0" => [[1], true], "6" => [[1], false] }.each do |status, expected|
        env = { "RBLOAT_BINARY" => program, "STATUS" => status }
        assert_equal expected, run_ruby("Rbloat.report.values_at(:causes, :complete)", env: env)
      end
    end
  end

  def test_a_missing_program_is_told
    { "RBLOAT_BINARY" => "/nowhere", "PATH" => "/nowhere" }.each do |variable, value|
      message = run_ruby("begin; Rbloat.const_get(:Program).path; rescue Rbloat::Error => e; e.message; end",
                         env: { "RBLOAT_BINARY" => nil }.merge(variable => value))
      assert_match(/RBLOAT_BINARY/, message)
    end
  end

  def test_who_may_attach
    answers = run_ruby("[Rbloat.allow_attach, Rbloat.allow_attach(Process.ppid), Rbloat.allow_attach(:none)].uniq.size")
    assert_equal 1, answers
    assert_raises(ArgumentError) { Rbloat.allow_attach("me") }
    assert_raises(ArgumentError) { Rbloat.allow_attach(-2) }
  end

  def test_stats_are_flat_and_numeric
    stats = run_ruby("Rbloat::AutoTrim.start; Rbloat.stats")
    assert_empty(stats.values.reject { |value| value.is_a?(Numeric) })
    assert_operator stats["rss_bytes"], :>, 1_000_000
    assert_equal 0, stats["auto_trim_returned_bytes"]
    assert_equal 0, stats["native_pressure_told_bytes"]
  end

  def test_stats_of_malloc
    before, after = run_ruby(<<~RUBY)
      burst
      before = Rbloat.malloc_stats
      Rbloat.trim
      [before, Rbloat.malloc_stats]
    RUBY
    assert_operator before["returnable_bytes"], :>, 50_000_000
    assert_operator before["returnable_bytes"], :<=, before["free_bytes"]
    assert_operator after["returnable_bytes"], :<, before["returnable_bytes"] / 2
  end

  def test_stats_with_another_malloc
    rss, message = run_ruby(<<~RUBY, env: { "LD_PRELOAD" => jemalloc })
      [Rbloat.stats[:rss_bytes], begin; Rbloat.malloc_stats; rescue Rbloat::UnsupportedError => e; e.message; end]
    RUBY
    assert_operator rss, :>, 0
    assert_includes message, "this process uses the malloc of jemalloc"
  end
end
