# frozen_string_literal: true

require_relative "../test_helper"
require "rbloat/results"

# The table that result sets consist of. Needs no database.
class CellsTest < Minitest::Test
  # Methods that read a table, each with valid arguments.
  READERS = {
    get: [0, 0], null?: [0, 0], row_values: [0], column_values: [0], column_index: ["a"],
    column_name: [0], column_type: [0], column_encoding: [0], row_count: [], column_count: [], columns: [],
    values: [], empty?: [], "[]": [0], first: [], to_a: []
  }.freeze

  # Creates and reads tables while each allocation runs the GC, and reads one after a compaction.
  STRESS = <<~'RUBY'
    decoder = Object.new
    def decoder.decode(string, row, column)
      "#{string} at #{row}, #{column}"
    end
    # More columns than the array of a row is created with.
    names = Array.new(34) { |column| "column #{column}" }
    rows = Array.new(2) { |row| Array.new(34) { |column| column == 7 ? nil : "cell #{row}" } }
    expected = Array.new(34) { |column| column == 7 ? nil : "cell 1 at 1, #{column}" }
    make = lambda do
      cells = Rbloat::Cells.new
      cells.send(:native_columns, names.map(&:dup), ["UTF-8"] * 34, Array.new(34) { |n| n + 2**31 }, [decoder] * 34)
      cells.send(:native_keep, [decoder])
      cells.send(:native_rows, rows.map { |row| row.map(&:dup) })
      cells
    end
    read = lambda do |cells|
      [cells.row_values(1) == expected, cells.column_values(33).last == expected[33],
       cells.get(1, "column 33") == expected[33], cells.column_name(33) == names[33],
       cells.column_type(33) == 2**31 + 33]
    end
    GC.stress = true
    cells = make.call
    under_stress = read.call(cells)
    make.call.clear
    GC.stress = false
    double = RUBY_VERSION < "3.2" ? { double_heap: true } : { expand_heap: true }
    begin
      GC.verify_compaction_references(toward: :empty, **double) if GC.respond_to?(:verify_compaction_references)
    rescue NotImplementedError
      warn "this platform does not compact"
    end
    (under_stress + read.call(cells)).tally
  RUBY

  # A decoder that calls a block with the table and the arguments of `decode`.
  class Decoder
    attr_accessor :cells

    def initialize(&block)
      @block = block
    end

    def decode(string, row, column)
      @block.call(@cells, string, row, column)
    end
  end

  # An object that can be converted to an Integer or String; the conversion calls the block.
  class Converted
    def initialize(value, &block)
      @value = value
      @block = block
    end

    def convert
      @block.call
      @value
    end
    alias to_int convert
    alias to_str convert
  end

  def fill(cells, rows, decoder: nil)
    names = ("a"..).first(rows.first.size)
    cells.send(:native_columns, names, ["UTF-8"] * names.size, [0] * names.size, decoder && ([decoder] * names.size))
    cells.send(:native_rows, rows)
    decoder.cells = cells if decoder
    cells
  end

  def table(rows = [%w[x y], ["z", nil]], decoder: nil)
    fill(Rbloat::Cells.new, rows, decoder: decoder)
  end

  def test_it_has_what_it_was_given
    assert_equal [%w[x y], ["z", nil]], table.values
    assert_equal [["y", nil], "b", 2], [table.column_values("b"), table.column_name(1), table.row_count]
  end

  def test_malformed_calls_are_refused
    cells = Rbloat::Cells.new
    assert_raises(ArgumentError) { cells.send(:native_columns, ["a"], [], [], nil) }
    assert_raises(TypeError) { cells.send(:native_columns, [1], ["UTF-8"], [0], nil) }
    assert_raises(ArgumentError) { cells.send(:native_columns, ["a"], ["no encoding"], [0], nil) }
    assert_raises(ArgumentError) { cells.size }
    cells.send(:native_columns, ["a"], ["UTF-8"], [0], nil)
    assert_raises(ArgumentError) { cells.send(:native_columns, ["a"], ["UTF-8"], [0], nil) }
    assert_raises(ArgumentError) { cells.send(:native_rows, [%w[a b]]) }
    assert_raises(TypeError) { cells.send(:native_rows, [[1]]) }
    cells.send(:native_rows, [["x"], [nil]])
    assert_raises(ArgumentError) { cells.send(:native_rows, [["x"]]) }
    assert_equal [["x"], [nil]], cells.values
  end

  def test_values_are_all_there_or_an_error_when_a_decoder_clears_the_table
    rows = Array.new(3) { |row| Array.new(40) { |column| "#{row}.#{column}" } }
    rows.each_index.to_a.product([0, 5, 31, 32, 39]).each do |at|
      { row_values: [at.first, rows[at.first]], column_values: [at.last, rows.transpose[at.last]],
        values: [nil, rows] }.each do |method, (argument, expected)|
        cells = table(rows, decoder: Decoder.new { |it, string, *cell| cell == at ? it.clear || string : string })
        found = begin
          cells.public_send(method, *argument)
        rescue ArgumentError
          expected if cells.cleared?
        end
        assert_equal expected, found, "#{method} at #{at}"
      end
    end
  end

  def test_a_block_may_clear_the_table
    cells = table
    assert_raises(ArgumentError) { cells.each_row { cells.clear } }
    cells = table
    assert_raises(ArgumentError) { cells.each { cells.clear } }
  end

  def test_a_cleared_table_is_not_filled_again
    # Otherwise a decoder could make the table smaller while it is being read.
    cells = table([%w[a b c]], decoder: Decoder.new do |it, *|
      it.clear
      fill(it, [["x"]])
    end)
    assert_raises(ArgumentError) { cells.row_values(0) }
    assert_predicate cells, :cleared?
  end

  def test_conversions_of_arguments_may_clear_the_table
    %i[get null? raw].each do |method|
      [0, 1].each do |which|
        cells = table
        arguments = [0, "b"]
        arguments[which] = Converted.new(arguments[which]) { cells.clear }
        error = assert_raises(ArgumentError) { cells.send(method, *arguments) }
        assert_match(/cleared/, error.message)
      end
    end
    cells = table
    assert_raises(ArgumentError) { cells.column_index(Converted.new("b") { cells.clear }) }
  end

  def test_conversions_may_change_what_columns_are_made_of
    names = ["a"] * 1_000
    encodings = ["UTF-8"] * 1_000
    cells = Rbloat::Cells.new
    encodings[0] = Converted.new("UTF-8") { encodings.clear }
    assert_raises(ArgumentError, TypeError) { cells.send(:native_columns, names, encodings, [0] * 1_000, nil) }
    [:clear, [:native_columns, [], [], [], nil]].each do |call|
      converted = Converted.new("UTF-8") { cells.send(*call) }
      cells = Rbloat::Cells.new
      assert_raises(ArgumentError) { cells.send(:native_columns, ["a"], [converted], [0], nil) }
    end
  end

  def test_what_was_never_filled_says_so
    [Rbloat::Cells.allocate, Rbloat::Cells.new].each do |cells|
      READERS.each do |method, arguments|
        assert_raises(ArgumentError, method.to_s) { cells.public_send(method, *arguments) }
      end
      assert_raises(ArgumentError) { cells.each_row { flunk } }
      assert_raises(ArgumentError) { cells.each { flunk } }
      assert_predicate cells, :cleared?
      assert_equal "#<Rbloat::Cells cleared>", cells.inspect
      assert_operator cells.bytesize, :<, 1_000
      assert_nil cells.clear
    end
  end

  def test_methods_cannot_be_bound_to_other_objects
    assert_raises(TypeError) { Rbloat::Cells.instance_method(:row_count).bind_call(Object.new) }
  end

  def test_no_copies
    cells = table
    [-> { cells.dup }, -> { cells.clone }, -> { cells.clone(freeze: true) }, -> { Marshal.dump(cells) },
     -> { cells.send(:initialize_copy, table) }].each do |copy|
      assert_raises(TypeError, &copy)
    end
    marshalled = "\x04\bo:\x12Rbloat::Cells\x00"
    assert_raises(ArgumentError, TypeError) { Marshal.load(marshalled) } # rubocop:disable Security/MarshalLoad
    assert_equal [%w[x y], ["z", nil]], cells.values
  end

  def test_a_frozen_table_takes_no_rows
    cells = Rbloat::Cells.new.freeze
    assert_raises(FrozenError) { cells.send(:native_columns, [], [], [], nil) }
    cells = table.freeze
    assert_raises(FrozenError) { cells.send(:native_rows, [["x"]]) }
    assert_raises(FrozenError) { cells.send(:native_keep, nil) }
  end

  # In another process, whose heap is small.
  def test_stress_and_compaction
    answer = run_ruby(STRESS, prelude: 'require "json"; require "rbloat/results"')
    assert_equal({ "true" => 10 }, answer)
  end
end
