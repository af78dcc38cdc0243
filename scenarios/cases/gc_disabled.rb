# frozen_string_literal: true

# An exception skips GC.enable, so the GC stays disabled: all growth is garbage (tmm1/gctools#7, petergoldstein/dalli#1053). The
# request "grow" handles more requests, and "enable" enables the GC and runs it.

require_relative "../lib/scenario"

module WithoutGC
  def self.measure
    GC.disable
    yield
    GC.enable # not in an ensure
  end
end

def handle_request
  Array.new(200) { |number| { id: number, text: "row #{number} " * 10 } }.sum { |row| row[:text].size }
end

REQUESTS = 400

grow = lambda do
  REQUESTS.times { handle_request }
  {}
end
enable = lambda do
  GC.enable
  3.times { GC.start }
  {}
end

Scenario.run(commands: { "grow" => grow, "enable" => enable }, settle: false) do |scale|
  # From Ruby 4.1 on, a program as small as this would not have collected garbage yet.
  GC.start
  begin
    WithoutGC.measure { Integer("x") }
  rescue ArgumentError
    nil
  end
  (3 * REQUESTS * scale).ceil.times { handle_request }
  {}
end
