# frozen_string_literal: true

# Healthy programs that make more objects for a while, or replace them: none of them leaks. The first argument is the name of one of
# them; `--list` prints all names. For each line on the standard input, it does so many rounds. With PAUSE=0.03 in its environment, it
# does rounds all the time, and waits so many seconds after each.

require "digest"
require "objspace"
require_relative "load"

# Each program is a block that does one round. It gets the number of the round, from 1 on.
module Programs
  ALL = {}

  def self.program(name, &round)
    ALL[name.to_s] = round
  end
end

# Random numbers that are the same in each run.
RANDOM = Random.new(1)

# A few pages have most requests, as on any site.
def popular(count)
  (count * (RANDOM.rand**3)).to_i
end

def page(key)
  { key: key, body: "page #{key} " * 60 }
end

# What the programs retain.
module Healthy
  CACHE = {}
  RECENT = []
  MEMO = {}
  POOL = []
  QUEUE = []
  SESSIONS = {}
  IDENTITIES = ObjectSpace::WeakMap.new
  Connection = Struct.new(:number, :buffer, :statements)
  Job = Struct.new(:number, :arguments)
end

module Programs
  CACHED = 3_000

  # Entries that were made first are dropped first.
  program(:bounded_cache) do
    10.times do
      key = RANDOM.rand(2 * CACHED)
      Healthy::CACHE[key] ||= page(key)
      Healthy::CACHE.shift if Healthy::CACHE.size > CACHED
    end
  end

  # Entries that were used least recently are dropped.
  program(:lru_cache) do
    20.times do
      key = popular(4 * CACHED)
      Healthy::CACHE[key] = Healthy::CACHE.delete(key) || page(key)
      Healthy::CACHE.shift if Healthy::CACHE.size > CACHED
    end
  end

  # Events wait until there are enough of them for one request to a server.
  program(:saw_tooth) do |number|
    10.times { |it| Healthy::RECENT << page(it + number) }
    Healthy::RECENT.clear if Healthy::RECENT.size >= 7_000
  end

  # A result for each of a limited number of arguments.
  program(:memoization) do
    15.times do
      key = popular(CACHED)
      Healthy::MEMO[key] ||= Digest::SHA256.hexdigest(key.to_s) * 20
    end
  end

  # A peak of the load that is higher than all before needs one more connection, up to a limit.
  program(:connection_pool) do |number|
    busy = 1
    busy += 1 while busy < 8 && RANDOM.rand < 0.7
    Healthy::POOL << Healthy::Connection.new(number, "b" * 65_536, {}) if busy > Healthy::POOL.size
    Healthy::POOL.first(busy).each do |it|
      key = popular(20)
      it.statements[key] ||= "SELECT #{key} FROM pages WHERE title = ?" * 20
      it.statements.shift if it.statements.size > 10
    end
  end

  # Jobs arrive faster than they are done for a while, and then the backlog drains.
  program(:job_queue) do |number|
    (number % 900 < 400 ? 20 : 4).times { |it| Healthy::QUEUE << Healthy::Job.new(number, page(it)) }
    Healthy::QUEUE.shift(12).each { |job| job.arguments[:body].size }
  end

  # Code is loaded when it is needed for the first time.
  program(:autoload) do
    name = "Part#{popular(400)}"
    unless Healthy.const_defined?(name, false)
      methods = Array.new(40) { |it| "def step#{it}(a); [a, a.to_s, { key: a }].map(&:to_s); end" }
      Healthy.module_eval("class #{name}; #{methods.join("; ")}; end", "/srv/app/#{name}.rb", 1)
    end
    Healthy.const_get(name).new.step3(1)
  end

  # Strings that grow and are copied.
  program(:string_churn) do |number|
    body = +""
    200.times { |it| body << "line #{it} of #{number}\n" }
    Healthy::RECENT[number % 400] = body.lines.map(&:upcase).join
  end

  # Threads for bursts of work. Idle ones end.
  program(:thread_pool) do |number|
    work = Healthy::QUEUE
    work << [number, "w" * 1_000]
    50.times { |it| work << [it, "w" * 1_000] } if (number % 300).zero?
    Healthy::POOL.select!(&:alive?)
    if work.size > Healthy::POOL.size && Healthy::POOL.size < 12
      Healthy::POOL << Thread.new do
        Thread.current[:buffer] = "b" * 50_000
        idle = 0
        while idle < 20
          job = work.shift
          idle = job ? 0 : idle + 1
          job ? job[1].upcase : sleep(0.05)
        end
      end
    end
  end

  # More and more methods are called often enough to be compiled.
  program(:jit_warm_up) do |number|
    RubyVM::YJIT.enable if number == 1 && defined?(RubyVM::YJIT) && RubyVM::YJIT.respond_to?(:enable)
    if number == 1
      code = Array.new(600) { |it| "def hot#{it}(a); b = a + #{it}; c = [b, a]; c.map { |d| d * 2 }.sum; end" }
      Healthy.module_eval("class Hot; #{code.join("\n")}; end")
    end
    hot = Healthy::Hot.new
    40.times { hot.public_send("hot#{popular([number, 600].min)}", number) }
  end

  # Sessions end some time after their last request.
  program(:sessions) do |number|
    5.times do |it|
      key = popular(50_000)
      Healthy::SESSIONS.delete(key)
      Healthy::SESSIONS[key] = [number, page(it)]
    end
    Healthy::SESSIONS.shift while Healthy::SESSIONS.first[1][0] < number - 700
  end

  # Objects by their identity, as long as others retain them.
  program(:weak_map) do |number|
    20.times do |it|
      key = Object.new
      Healthy::IDENTITIES[key] = Healthy::RECENT[((number * 20) + it) % 5_000] = [key, page(it)]
    end
  end
end

name = ARGV.shift
if name == "--list"
  puts Programs::ALL.keys
  exit
end
round = Programs::ALL.fetch(name)
number = 0
work = lambda do
  round.call(number += 1)
  Load.garbage
end
pause = Float(ENV.fetch("PAUSE", "0"))
4.times { GC.start }
puts "ready {}"
$stdout.flush
loop { work.call && sleep(pause) } if pause.positive?
while (line = $stdin.gets)
  Integer(line).times { work.call }
  puts "ready {}"
  $stdout.flush
end
exit!(0)
