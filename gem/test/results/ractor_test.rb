# frozen_string_literal: true

require_relative "../test_helper"
require_relative "../ractors"

# Tables in a Ractor other than the main one.
class ResultsRactorTest < Minitest::Test
  include Ractors

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
    assert_equal [[true, true, true], [["x"]]], run_ruby(<<~RUBY, prelude: Ractors::PRELUDE)
      cells = Rbloat::Cells.new
      cells.send(:native_columns, ["a"], ["UTF-8"], [0], nil)
      cells.send(:native_rows, [["x"]])
      cells.freeze
      ractor = Ractor.new { Ractor.receive }
      ways = [-> { Ractor.make_shareable(cells) }, -> { ractor.send(cells) }, -> { ractor.send(cells, move: true) }]
      # A copy is a TypeError up to Ruby 4.0.
      refused = ways.map do |way|
        way.call && false
      rescue Ractor::Error, TypeError
        true
      end
      GC.start
      [refused, cells.values]
    RUBY
  end
end
