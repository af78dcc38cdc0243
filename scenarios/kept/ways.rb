# frozen_string_literal: true

# A server with a fixed number of requests a second. Each makes so much garbage, and keeps objects so many times in one of these ways.
#   usage: ways.rb WAY TIMES GARBAGE REQUESTS_PER_SECOND

require_relative "paced"

$VERBOSE = nil
WAY, TIMES, GARBAGE, RATE = ARGV[0], Integer(ARGV[1]), Integer(ARGV[2]), Float(ARGV[3])
LEAK = []
Event = Struct.new(:at, :who, :what)

class Audit
  def event(number)
    LEAK << Event.new(number, "user #{number}", [number, number])
  end

  def block(times)
    times.times { |i| LEAK << ["block", i, "x#{i}"] }
  end

  def fiber(number)
    @fiber ||= Fiber.new { loop { keep(Fiber.yield) } }.tap(&:resume)
    @fiber.resume(number)
  end

  def keep(number)
    LEAK << Event.new(number, "f #{number}", nil)
  end

  def thread(times)
    Thread.new { times.times { |i| LEAK << Event.new(i, "t #{i}", nil) } }.join
  end

  def array(number)
    LEAK << Array.new(5, number)
  end

  def json(_number)
    LEAK << JSON.parse('{"id":1,"name":"abc","tags":["a","b"]}')
  end

  def split(_number)
    LEAK << "a,b,c,d,e,f,g,h".split(",")
  end

  def deep(number, depth = 150)
    depth.zero? ? event(number) : deep(number, depth - 1)
  end

  def hot(number)
    LEAK << Event.new(number, "hot #{number}", nil)
  end

  def cold(number)
    LEAK << Event.new(number, "cold #{number}", nil)
  end

  def merge(number)
    LEAK << { a: number }.merge(b: number + 1)
  end
end

# What a Ractor keeps in its own variable, or the main one in the constant.
def note(list, number)
  list << Event.new(number, "user #{number}", nil)
end

def garbage(count)
  (count / 4).times { |i| { id: i, name: "n#{i}", tags: [i] }[:id] }
end

if WAY == "ractors"
  RACTORS = Array.new(3) do
    Ractor.new(TIMES, GARBAGE) do |times, count|
      list = (Ractor.current[:list] ||= [])
      loop { garbage(count); times.times { |i| note(list, i) }; sleep 0.001 }
    end
  end
end

require "json" if WAY == "json"
audit = Audit.new
request =
  case WAY
  when "block", "thread" then ->(_) { audit.public_send(WAY, TIMES) }
  when "ractors" then ->(number) { TIMES.times { note(LEAK, number) } }
  when "ratio" then ->(number) { (TIMES * 3 / 4).times { audit.hot(number) }; (TIMES / 4).times { audit.cold(number) } }
  else ->(number) { TIMES.times { |i| audit.public_send(WAY, number + i) } }
  end
Paced.run(RATE) do |number|
  garbage(GARBAGE)
  request.call(number)
end
