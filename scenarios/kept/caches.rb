# frozen_string_literal: true

# A healthy server with caches that evict, a memo that fills, a pool, and a log that rotates.
#   usage: caches.rb OBJECTS_OF_THE_CACHE

require_relative "paced"

LIMIT = Integer(ARGV[0])
Entry = Struct.new(:key, :body)

# Evicts what was used least recently.
module Recent
  OBJECTS = {}

  def self.fetch(key)
    OBJECTS[key] = OBJECTS.delete(key) || yield
    OBJECTS.shift while OBJECTS.size > LIMIT
  end
end

# Evicts what is oldest.
module Times
  SEEN = {}

  def self.note(key)
    SEEN[key] = Time.now
    SEEN.shift while SEEN.size > 15_000
  end
end

module Memo
  OBJECTS = {}

  def self.at(key)
    OBJECTS[key] ||= Entry.new(key, "memo #{key}")
  end
end

module Log
  LINES = []
  BEFORE = []

  def self.add(text)
    LINES << "line #{text} #{LINES.size}"
    return if LINES.size <= 5000

    BEFORE.replace(LINES)
    LINES.clear
  end
end

module Pool
  CONNECTIONS = Array.new(10) { {} }

  def self.use
    connection = CONNECTIONS.shift
    connection[:last] = Entry.new(1, "query #{rand(1000)}")
    CONNECTIONS << connection
  end
end

def request(number)
  400.times { |i| { id: i, name: "n#{i}", tags: [i] }[:id] }
  8.times { Recent.fetch(rand(200_000)) { Entry.new(number, "body #{number}") } }
  4.times { Memo.at((rand * rand * 50_000).to_i) }
  6.times { Log.add(number) }
  3.times { Pool.use }
  4.times { Times.note([number, rand(9)]) }
end

Paced.run(100.0) { |number| request(number) }
