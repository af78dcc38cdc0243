# frozen_string_literal: true

require_relative "test_helper"

# The gem's methods in a Ractor other than the main one.
class RactorTest < Minitest::Test
  PRELUDE = <<~'RUBY'
    require "json"
    require "rbloat"
    Warning[:experimental] = false

    def in_ractor(&block)
      ractor = Ractor.new(&block)
      ractor.respond_to?(:value) ? ractor.value : ractor.take
    rescue Ractor::RemoteError => error
      "#{error.cause.class}: #{error.cause.message}"
    end
  RUBY

  def setup
    skip "Ractor came with Ruby 3.0" unless defined?(Ractor)
  end

  def in_ractor(code, env: {})
    run_ruby("in_ractor { #{code} }", env: env, prelude: PRELUDE)
  end

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
    message, disabled = run_ruby(<<~RUBY, prelude: PRELUDE)
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

  def test_a_table
    assert_equal [[["x", nil]], "x", %w[a b], true], in_ractor(<<~RUBY)
      cells = Rbloat::Cells.new
      cells.send(:native_columns, %w[a b], ["UTF-8"] * 2, [0] * 2, nil)
      cells.send(:native_rows, [["x", nil]])
      [cells.values, cells[0]["a"], cells.columns, cells.clear || cells.cleared?]
    RUBY
  end

  # A table can be cleared, so it cannot be shared or moved.
  def test_a_table_is_not_shared
    assert_equal [%w[Ractor::Error TypeError Ractor::Error], [["x"]]], run_ruby(<<~RUBY, prelude: PRELUDE)
      cells = Rbloat::Cells.new
      cells.send(:native_columns, ["a"], ["UTF-8"], [0], nil)
      cells.send(:native_rows, [["x"]])
      cells.freeze
      ractor = Ractor.new { Ractor.receive }
      ways = [-> { Ractor.make_shareable(cells) }, -> { ractor.send(cells) }, -> { ractor.send(cells, move: true) }]
      errors = ways.map do |way|
        way.call
      rescue Ractor::Error, TypeError => error
        error.class.name
      end
      GC.start
      [errors, cells.values]
    RUBY
  end
end
