# frozen_string_literal: true

require_relative "../test_helper"
require_relative "postgres"

# A result that becomes a result set is either as it was or cleared, whatever happens.
class ResultSetTakeoverTest < Minitest::Test
  include Postgres

  # Raised by a test, at any place.
  class Interruption < Exception # rubocop:disable Lint/InheritException
  end

  EVENTS = %i[line call return c_call c_return b_call b_return].freeze

  # Creates a set, and raises at the event with this number. Returns the set, or nil if the exception came through.
  def interrupted(number, result)
    count = 0
    trace = TracePoint.new(*EVENTS) do |event|
      next if event.self == trace || (count += 1) != number

      raise Interruption
    end
    trace.enable { Rbloat::PGResultSet.new(result) }
  rescue Interruption
    nil
  end

  # The state of a result after an exception at the event with this number.
  def state_after_event(number, result)
    expected = contents(result)
    return "made" if interrupted(number, result)
    return "cleared" if result.cleared?

    assert_whole expected, result
    "whole"
  end

  def assert_whole_or_cleared_at_each_event
    states = (1..).lazy.map { |number| state_after_event(number, yield) }
    # There is only one change before the end.
    assert_equal %w[whole cleared], states.take_while { |state| state != "made" }.chunk_while(&:==).map(&:first).to_a
  end

  def test_an_exception_at_any_event_leaves_the_result_whole_or_cleared
    assert_whole_or_cleared_at_each_event { @connection.exec("SELECT 1 AS a, NULL AS b UNION ALL SELECT 2, 'x'") }
  end

  def test_an_exception_at_any_event_leaves_the_type_map
    map = PG::TypeMapByColumn.new([nil, PG::TextDecoder::Integer.new])
    map.default_type_map = PG::BasicTypeMapForResults.new(@connection)
    @connection.type_map_for_results = map
    assert_whole_or_cleared_at_each_event { @connection.exec("SELECT 1 AS a, 2 AS b") }
  end

  def test_a_copy_that_fails_leaves_the_result_whole
    failing = Class.new(Rbloat::PGResultSet) do
      define_method(:native_take) { |*| false }
      define_method(:native_rows) { |*| raise Interruption }
    end
    result = @connection.exec("SELECT 1 AS a")
    expected = contents(result)
    assert_raises(Interruption) { failing.new(result) }
    assert_whole expected, result
  end

  # Other threads may run at any event.
  def test_at_any_event_the_result_is_whole_or_cleared
    result = @connection.exec(ROWS)
    expected = contents(result)
    seen = []
    trace = TracePoint.new(*EVENTS) { seen << (result.cleared? || contents(result) == expected) }
    trace.enable { Rbloat::PGResultSet.new(result) }
    assert_operator seen.size, :>, 100
    assert_equal [true], seen.uniq
  end

  def test_a_thread_that_is_interrupted_leaves_the_result_whole_or_cleared
    Array.new(300) { @connection.exec("SELECT 1 AS a FROM generate_series(1, 3)") }.each do |result|
      thread = Thread.new { result.result_set }
      thread.report_on_exception = false
      Thread.pass
      thread.raise(Interruption)
      begin
        thread.join
      rescue Interruption
        nil
      end
      assert_equal [%w[1]] * 3, result.values unless result.cleared?
    end
  end

  # The extension reads a result without pg, and must not believe what pg contradicts.
  def test_cells_that_differ_from_those_of_pg_leave_the_result_whole
    lying = Class.new(Rbloat::PGResultSet) do
      def samples_of(result)
        super.tap { |samples| samples.last[2] = "other" }
      end
    end
    [0, 1].each do |format|
      result = @connection.exec_params("SELECT 'x' AS a, NULL AS b", [], format)
      expected = contents(result)
      assert_match(/disagree/, assert_raises(TypeError) { lying.new(result) }.message)
      assert_whole expected, result
      result.define_singleton_method(:autoclear?) { true }
      assert_raises(TypeError) { lying.new(result) }
      assert_whole expected, result
    end
  end

  def test_the_gc_is_told_once
    skip "Ruby has no GC.stat(:malloc_increase_bytes)" unless GC.stat.key?(:malloc_increase_bytes)
    sql = "SELECT repeat('x', 1000) FROM generate_series(1, 1000)"
    @connection.exec(sql).result_set
    GC.start
    GC.disable
    increase = -> { GC.stat(:malloc_increase_bytes) }
    before = increase.call
    result = @connection.exec(sql)
    reported = increase.call - before
    set = result.result_set
    assert_in_delta reported, increase.call - before, 20_000
    set.clear
    assert_operator increase.call - before, :<, 20_000
    assert_operator ObjectSpace.memsize_of(result), :<, 1_000
  ensure
    GC.enable
  end

  def test_a_second_set_of_a_result_is_refused
    result = @connection.exec(ROWS)
    set = result.result_set
    error = assert_raises(PG::Error) { result.result_set }
    assert_match(/has been cleared/, error.message)
    assert_equal 100, set.size
    assert_raises(PG::Error) { result.cmd_tuples }
    assert_nil result.clear
  end

  def test_two_threads_cannot_both_take_a_result
    result = @connection.exec(ROWS)
    other = nil
    trace = TracePoint.new(:c_call) { |event| other ||= result.result_set if event.method_id == :native_take }
    assert_raises(PG::Error) { trace.enable { result.result_set } }
    assert_equal 100, other.size
  end

  def test_a_result_of_copy_is_refused
    @connection.exec("CREATE TEMP TABLE numbers(a int)")
    ["COPY numbers FROM STDIN", "COPY (SELECT 1) TO STDOUT"].each do |sql|
      result = @connection.exec(sql)
      error = assert_raises(ArgumentError) { result.result_set }
      assert_match(/COPY has no rows/, error.message)
      refute_predicate result, :cleared?
      @connection.reset
      @connection.exec("CREATE TEMP TABLE numbers(a int)")
    end
  end

  def test_a_result_of_a_query_that_failed_is_refused
    @connection.send_query("SELECT 1 / 0")
    result = @connection.get_result
    assert_raises(PG::DivisionByZero) { result.result_set }
    refute_predicate result, :cleared?
  end

  def test_rows_that_arrive_one_by_one
    @connection.send_query("SELECT * FROM generate_series(1, 3)")
    @connection.set_single_row_mode
    sets = []
    while (result = @connection.get_result)
      sets << result.result_set
    end
    assert_equal [[%w[1]], [%w[2]], [%w[3]], []], sets.map(&:values)
  end

  def test_results_that_are_streamed
    @connection.send_query("SELECT * FROM generate_series(1, 3)")
    @connection.set_single_row_mode
    result = @connection.get_result
    sets = []
    assert_same result, result.stream_each { sets << result.result_set }
    assert_equal [[%w[1]], [%w[2]], [%w[3]]], sets.map(&:values)
  end

  def test_results_of_a_pipeline
    skip "this libpq has no pipelines" unless @connection.respond_to?(:enter_pipeline_mode)
    @connection.enter_pipeline_mode
    ["SELECT 1 AS a", "SELECT 1 / 0", "SELECT 2 AS a"].each { |sql| @connection.send_query_params(sql, []) }
    @connection.pipeline_sync
    # A query has a result and a nil; the synchronization has a result only.
    results = Array.new(7) { @connection.get_result }.compact
    found = results.map do |result|
      result.result_set.values
    rescue PG::Error => e
      refute_predicate result, :cleared?
      e.is_a?(PG::DivisionByZero) ? PG::DivisionByZero : PG::Error
    end
    assert_equal [[%w[1]], PG::DivisionByZero, PG::Error, []], found
  end

  def test_as_many_columns_as_there_can_be
    row = Array.new(1_600, &:to_s)
    columns = row.map { |number| "#{number} AS c#{number}" }.join(", ")
    [0, 1].each do |format|
      set = @connection.exec_params("SELECT #{columns}, NULL AS none".sub(", 1599 AS c1599", ""), [], format).result_set
      assert_equal [1_600, nil], [set.column_count, set.get(0, "none")]
      assert_equal row[0..-2], set.row_values(0)[0..-2].map { |it| format.zero? ? it : it.unpack1("N").to_s }
      assert_equal set.row_values(0), set.shrink.row_values(0)
    end
  end

  def test_only_nulls
    set = result_set("SELECT NULL AS a, NULL AS b FROM generate_series(1, 50)")
    assert_equal [[nil, nil]] * 50, set.values
    assert_equal [[nil, nil]] * 50, set.shrink.values
  end

  def test_a_forked_process_has_its_own_copy
    set = result_set
    expected = set.values
    reader, writer = IO.pipe
    child = fork do
      same = set.values == expected
      set.clear
      writer.write(same)
      # The connection belongs to the parent.
      Process.exit!(0)
    end
    writer.close
    assert_equal "true", reader.read
    Process.wait(child)
    assert_equal expected, set.values
  end
end
