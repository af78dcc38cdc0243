# frozen_string_literal: true

# usage: limit.rb USED ROUNDS
#
# The throughput of a program that has 2 million free chunks of malloc and uses the share USED of its memory limit,
# with AutoTrim and without. Both take turns in one process, so a slow minute of the machine affects both. It must run
# in a control group with a limit of 1 GiB. Prints one line of JSON: strings per second in each turn, and the time with
# AutoTrim.

require "json"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require "rbloat"
require_relative "../../testkit/ruby/extension"
require Extension.compile(File.join(__dir__, "chunks.c"))
require_relative "figures"

FREE_CHUNKS = 2_000_000
# Too large for the fastbins.
CHUNK_BYTES = 160
# Long, since checks become rarer in the seconds after a start.
SECONDS = 20.0

# Makes strings in the main thread, whose arena has the free chunks. Returns strings per second.
def work(seconds)
  recent = Array.new(200)
  count = 0
  started = clock
  100.times { recent[(count += 1) % 200] = "x" * (700 + (count % 2_000)) } while clock < started + seconds
  count / (clock - started)
end

def with_auto_trim
  Rbloat::AutoTrim.start
  yield
ensure
  Rbloat::AutoTrim.stop
end

used, rounds = ARGV
group = Rbloat::Cgroup.find || abort("limit.rb: there is no memory limit")
in_use = -> { File.read(group.usage).to_f / group.limit }

Chunks.leave(FREE_CHUNKS, CHUNK_BYTES)
ballast = []
ballast << ("x" * (1 << 20)) while in_use.call < Float(used)
work(1)

pairs = Array.new(Integer(rounds)) do |round|
  turns = { false => -> { work(SECONDS) }, true => -> { with_auto_trim { work(SECONDS) } } }
  order = round.even? ? [false, true] : [true, false]
  order.to_h { |trims| [trims, turns.fetch(trims).call] }.values_at(false, true)
end
puts JSON.generate(without: pairs.map(&:first), with: pairs.map(&:last), seconds: pairs.size * SECONDS,
                   **Rbloat::AutoTrim.stats.slice(:looks, :look_seconds, :trims))
