# frozen_string_literal: true

# Short strings that are slices of long ones, and keep all bytes of these. A long string that is also used as a whole is
# no such case.

require_relative "../lib/scenario"

# Tokens from the ends of bodies.
module Sessions
  TOKENS = []

  def self.tail(body)
    TOKENS << body[-60..]
  end
end

# A text of which there are slices, too.
module Terms
  TEXT = ("t" * (8 << 20)).freeze
  TITLE = TEXT[0, 80]
end

Scenario.run(commands: {
  "copy" => lambda do
    Sessions::TOKENS.map! { |token| token + "" }
    3.times { GC.start }
    {}
  end
}) do |scale|
  count = (120 * scale).ceil
  # In a thread of its own, because its stack disappears.
  Thread.new { count.times { |index| Sessions.tail(("a".ord + index % 26).chr * (1 << 20)) } }.join
  { slices: count }
end
