# frozen_string_literal: true

# A job makes small objects and long texts, and keeps a few of both. Free slots and free blocks of malloc stay, about as much of each.

require_relative "../lib/scenario"

# The result of the job.
module Job
  EVENTS = []
  TEXTS = []

  def self.run(scale)
    random = Random.new(1)
    events = Array.new((840_000 * scale).ceil) { Object.new }
    texts = Array.new((36_000 * scale).ceil) { "x" * random.rand(1_050..1_400) }
    0.step(events.size - 1, 50) { |at| EVENTS << events[at] }
    0.step(texts.size - 1, 4) { |at| TEXTS << texts[at] }
    # Explicitly, because the GC keeps objects to which a stale word on the stack refers.
    [events, texts].each(&:clear)
  end
end

Scenario.run do |scale|
  # In a thread, because its stack disappears.
  Thread.new { Job.run(scale) }.join
  { kept: Job::EVENTS.size + Job::TEXTS.size }
end
