# frozen_string_literal: true

# A method that never returns matched a large text once. It cleared its variable, but `$~` of its frame still has the match.

require_relative "../lib/scenario"

# Follows a file.
class Tailer
  def initialize(lines)
    @lines = lines
  end

  def run(ready)
    text = ("line\n" * @lines) << "END"
    raise "no end" unless text =~ /END\z/

    text = nil
    forget(500)
    ready << true
    sleep
    text
  end

  private

  # Overwrites old words of the stack.
  def forget(depth)
    depth.zero? ? 0 : forget(depth - 1)
  end
end

Scenario.run do |scale|
  lines = (16_000_000 * scale).ceil
  ready = Queue.new
  Thread.new do
    Thread.current.name = "tailer"
    Tailer.new(lines).run(ready)
  end
  ready.pop
  { text_bytes: (lines * 5) + 3 }
end
