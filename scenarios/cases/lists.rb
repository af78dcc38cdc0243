# frozen_string_literal: true

# Objects that only lists of the interpreter retain: at_exit, finalizers, TracePoints, signal handlers, hooks of variables, variables of threads and
# fibers, the queues and variables of Ractors, a stream, the main object, and $LOAD_PATH. Each list has a class of its own. The public reports: vmware-archive/rbvmomi#156,
# teampoltergeist/poltergeist#817, meh/ruby-thread#30, mizzy/specinfra#13, getsentry/sentry-ruby#805,
# steveklabnik/request_store#23, ruby/ruby#5973.

require_relative "../lib/scenario"

# Otherwise Ruby warns that finalizers refer to their objects.
$VERBOSE = nil

# What the lists retain.
module Item
  # The lines of the blocks.
  LINES = { AtExit: __LINE__ + 16, Finalized: __LINE__ + 23, Traced: __LINE__ + 30, Handler: __LINE__ + 37, Hook: __LINE__ + 51 }.freeze

  # Has a text of its own.
  class Base
    def initialize
      @text = rand.to_s.ljust(2000, "x")
    end

    def call(*)
      @text.size
    end
  end

  # Closes itself at the end of the program.
  class AtExit < Base
    def keep
      at_exit { call }
    end
  end

  # Is captured by its own finalizer, so it lives forever.
  class Finalized < Base
    def keep
      ObjectSpace.define_finalizer(self, proc { call })
    end
  end

  # Listens to an event that does not occur.
  class Traced < Base
    def keep
      TracePoint.new(:class) { call }.enable
    end
  end

  # Handles a signal.
  class Handler < Base
    def keep
      trap("USR1") { call }
    end
  end

  # Is in a variable of the thread that runs.
  class Local < Base
    def keep
      Thread.current[:last_request] = { body: self }
    end
  end

  # Is told of a new level.
  class Hook < Base
    def keep
      trace_var(:$level) { call }
    end
  end

  # Is in a variable of the thread, whichever fiber it runs.
  class Variable < Base
    def keep
      Thread.current.thread_variable_set(:audit, [self])
    end
  end

  # Is in the storage of the fiber.
  class Stored < Base
    def keep
      Fiber[:tenant] = [self] if Fiber.respond_to?(:[]=)
    end
  end

  # Is in the storage of a fiber that waits.
  Parked = Class.new(Stored)
  Message = Class.new(Base)
  Shared = Class.new(Base)
  Result = Class.new(Base)
  Posted = Class.new(Base)
  Private = Class.new(Base)
  Line = Class.new(Base)
  Own = Class.new(Base)
  Folder = Class.new(String)
end

# Keeps lines instead of printing them.
class Lines
  def initialize(count)
    @lines = Array.new(count) { Item::Line.new }
  end

  def write(*)
    0
  end
end

# A pool of threads, which wait.
POOL = []
JOBS = Queue.new
DONE = Queue.new

def pool(count)
  count.times do
    POOL << Thread.new do
      while (job = JOBS.pop)
        job.call
        job = nil
        DONE << true
      end
    end
  end
end

# All threads of the pool keep an item.
def in_pool(count)
  pool(count)
  ready = Queue.new
  go = Queue.new
  kinds = [Item::Local, Item::Variable, Item::Stored]
  count.times { JOBS << -> { [kinds.each { |kind| kind.new.keep }.size, ready << true, go.pop] } }
  count.times { ready.pop }
  count.times { go << true }
  count.times { DONE.pop }
end

Scenario.run do |scale|
  count = (50 * scale).ceil
  in_pool(count)
  WAITING = Array.new(count) { Fiber.new { [Item::Parked.new.keep, Fiber.yield] } }
  WAITING.each(&:resume)
  # In a fiber, because its stack disappears with all stale words.
  Fiber.new do
    count.times { [Item::AtExit, Item::Finalized, Item::Traced, Item::Hook].each { |kind| kind.new.keep } }
    Item::Handler.new.keep
  end.resume
  if defined?(Ractor)
    SINK = Ractor.new { loop { sleep } }
    count.times { SINK.send(Item::Message.new) }
    Ractor.current[:shared] = Array.new(count) { Item::Shared.new }
    # It refers to the main Ractor, which receives nothing.
    reader, writer = IO.pipe
    WORKER = Ractor.new(Ractor.current, count, writer.fileno) do |main, results, done|
      results.times { main.send(Item::Result.new) }
      Ractor.current[:private] = Array.new(results) { Item::Private.new }
      IO.for_fd(done, autoclose: false).syswrite("x")
      loop { sleep }
    end
    reader.read(1)
  end
  if defined?(Ractor::Port)
    # The first one that is received leaves the others to the queue of the port.
    PORT = Ractor::Port.new
    PORT.send(nil)
    count.times { PORT.send(Item::Posted.new) }
    PORT.receive
  end
  $stderr = Lines.new(count)
  @own = Array.new(count) { Item::Own.new }
  count.times { |number| $LOAD_PATH << Item::Folder.new("/no/such/folder/#{number}") }
  { objects: count, lines: Item::LINES, has_ractors: !defined?(Ractor).nil?, has_storage: Fiber.respond_to?(:[]=) }
end
