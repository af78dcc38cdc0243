# frozen_string_literal: true

# A message that is read with read_nonblock has room for as much as was asked for (ruby/ruby#18353). malloc has allocated that, but
# only the pages with text are resident. The request "step" receives more messages, and "copy" copies all.

require "socket"
require_relative "../lib/scenario"

# The messages that were received.
module Inbox
  MESSAGES = []
  OURS, THEIRS = UNIXSocket.pair

  def self.receive(count)
    count.times do |number|
      THEIRS.write("message #{number} " * 20)
      MESSAGES << OURS.read_nonblock(1 << 16)
    end
  end
end

def step
  Inbox.receive(6_000)
  2.times { GC.start }
  { objects: Inbox::MESSAGES.size }
end

def copy
  Inbox::MESSAGES.each { |message| message.replace(message + "") }
  2.times { GC.start }
  {}
end

Scenario.run(commands: { "step" => method(:step), "copy" => method(:copy) }) do |scale|
  Inbox.receive((15_000 * scale).ceil)
  { objects: Inbox::MESSAGES.size, each_bytes: ObjectSpace.memsize_of(Inbox::MESSAGES.first) }
end
