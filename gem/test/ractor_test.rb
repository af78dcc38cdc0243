# frozen_string_literal: true

require_relative "test_helper"
require_relative "ractors"

# The gem's methods in a Ractor other than the main one.
class RactorTest < Minitest::Test
  include Ractors

  def test_attach_and_report
    Dir.mktmpdir do |folder|
      program = write_program(folder, 'print %({"pid": #{ARGV[1]}})') # rubocop:disable Lint/InterpolationCheck
      assert_equal [[true], true], in_ractor(<<~RUBY, env: { "RBLOAT_BINARY" => program })
        [[[:any, :none].all? { |pid| [true, false].include?(Rbloat.allow_attach(pid)) }],
         Rbloat.report[:pid] == Process.pid]
      RUBY
    end
    path = in_ractor("Rbloat.const_get(:Program).path", env: { "RBLOAT_BINARY" => nil, "PATH" => "/nowhere" })
    assert_match(/cannot find the program rbloat|libexec/, path)
  end

  def test_statistics
    assert_equal [true, true, true, true], in_ractor(<<~RUBY)
      [Rbloat.stats[:rss_bytes], Rbloat.rss_bytes, Rbloat.trim, Rbloat.allocator.size].map { |it| it >= 0 }
    RUBY
  end

  def test_a_probe_is_refused_and_changes_nothing
    message, disabled = run_ruby(<<~RUBY, prelude: Ractors::PRELUDE)
      GC.disable
      [in_ractor { Rbloat.probe { 1 } }, GC.disable]
    RUBY
    assert_equal "Ractor::UnsafeError: a probe works only in the main Ractor", message
    assert disabled
  end

  def test_auto_trim_and_native_pressure
    assert_equal [true, true, false, false], in_ractor(<<~RUBY)
      started = [Rbloat::AutoTrim.start, Rbloat::NativePressure.start]
      Rbloat::AutoTrim.quiet!
      Rbloat::AutoTrim.prepare_fork
      [Rbloat::AutoTrim, Rbloat::NativePressure].each(&:stop)
      started + [Rbloat::AutoTrim.running?, Rbloat::NativePressure.running?]
    RUBY
  end

  def test_the_warning_about_another_malloc_appears_once
    answer = in_ractor("Array.new(2) { Rbloat::NativePressure.start }.last", env: { "LD_PRELOAD" => jemalloc })
    assert_equal false, answer
    assert_equal 1, errors.scan("this process uses the malloc of jemalloc").size
  end
end
