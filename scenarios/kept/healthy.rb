# frozen_string_literal: true

# A program that keeps nothing more and more: a cache with a limit, which is full, results that live for some collections, and
# garbage.

require_relative "load"

Entry = Struct.new(:key, :value, :made)

class Cache
  STORE = {}
  LIMIT = 5000

  def fetch(key)
    STORE.shift if STORE.size >= LIMIT
    entry = Entry.new(key, "value #{key}", [key])
    Load.check(entry)
    STORE[key] = entry
  end
end

class Recent
  RESULTS = Array.new(2000)

  def note(number)
    result = { number: number, text: "result #{number}" }
    Load.check(result)
    RESULTS[number % RESULTS.size] = result
  end
end

cache, recent = Cache.new, Recent.new
(Cache::LIMIT + 1).times { |number| cache.fetch(-number) }
2000.times { |number| recent.note(number) }
Load.run do |number|
  2.times { |index| cache.fetch(number * 2 + index) }
  recent.note(number)
end
