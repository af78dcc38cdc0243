# frozen_string_literal: true

# The first elements of long Arrays, which share all elements of these. The request "copy" replaces them by copies.

require_relative "../lib/scenario"

# The best rows of each report.
module Report
  TOP = []

  def self.run(number, rows)
    TOP << Array.new(rows) { |index| "row #{number}/#{index} #{"w" * 40}" }.first(10)
  end
end

Scenario.run(commands: {
  "copy" => lambda do
    Report::TOP.map! { |rows| rows + [] }
    4.times { GC.start }
    {}
  end
}) do |scale|
  reports = (24 * scale).ceil
  # In a thread of its own, because its stack disappears.
  Thread.new { reports.times { |number| Report.run(number, 50_000) } }.join
  { slices: reports }
end
