# frozen_string_literal: true

# Queues in Arrays that were long once. `shift` shares an Array's memory with one that Ruby hides from programs, and the next `push`
# makes a copy of what is left. Then the long one is garbage, but a program that allocates little has no collection for a long time.

require_relative "../lib/scenario"

# Jobs that wait.
class Backlog
  def initialize(jobs)
    @jobs = Array.new(jobs) { |job| job }
  end

  def work_off
    @jobs.shift while @jobs.size > 1000
    @jobs.push(0)
  end
end

BACKLOGS = []

Scenario.run(settle: false, commands: {
  "collect" => lambda do
    3.times { GC.start }
    {}
  end
}) do |scale|
  # In a thread of its own, because its stack disappears.
  Thread.new { 5.times { BACKLOGS << Backlog.new((2_000_000 * scale).ceil) } }.join
  GC.start
  Thread.new { BACKLOGS.each(&:work_off) }.join
  { queues: BACKLOGS.size, bytes: (5 * 16_000_000 * scale).ceil }
end
