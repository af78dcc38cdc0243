# frozen_string_literal: true

require "json"

# The growth that each program of this folder measures itself: the page faults of the calling thread around each piece of
# work, by the method that does it. The kernel's count is the same as rbloat's, so the figures differ only if a stack is read
# too late.
module Truth
  LOCK = Mutex.new
  BYTES = Hash.new(0)
  PAGE = 4096

  # Each thread has a file and a buffer of its own, since measuring must not make the program grow.
  def self.faults
    thread = Thread.current
    file, buffer = thread.thread_variable_get(:truth) ||
                   thread.thread_variable_set(:truth, [File.open("/proc/thread-self/stat"), String.new(capacity: 1024)])
    file.pread(1024, 0, buffer)
    buffer[/\) \S+(?: \S+){6} (\d+)/, 1].to_i
  end

  def self.rss
    File.read("/proc/self/statm").split[1].to_i * PAGE
  end

  # Does the work of the method `name`.
  def self.of(name)
    before = faults
    result = yield
    bytes = (faults - before) * PAGE
    LOCK.synchronize { BYTES[name] += bytes }
    result
  end

  # Waits until a line arrives on the standard input, works, and prints the truth.
  def self.run
    puts "ready {}"
    $stdout.flush
    $stdin.gets
    before = rss
    yield
    puts "ready #{JSON.generate(bytes: BYTES, growth: rss - before)}"
    $stdout.flush
    $stdin.read
  end
end
