# frozen_string_literal: true

# A control group of the kernel's with a real memory limit, for programs to be run in. It is made below the group that
# this process is in, or beside it, since version 2 wants processes in leaves alone.
class ControlGroup
  # No such group can be made here: the kernel has none, or whoever runs the tests may not.
  class Unavailable < StandardError
  end

  # By version: where groups are, the file with the limit, those that keep memory from being swapped with what is
  # written to them, and the file that counts kills.
  LAYOUTS = {
    1 => ["/sys/fs/cgroup/memory", "memory.limit_in_bytes", { "memory.memsw.limit_in_bytes" => nil },
          "memory.oom_control"],
    2 => ["/sys/fs/cgroup", "memory.max", { "memory.swap.max" => "0" }, "memory.events"]
  }.freeze

  # Yields a group, and removes it when the block is done: all that ran in it must have ended.
  # @param limit [Integer] bytes
  # @raise [Unavailable]
  def self.with(limit)
    group = make(limit)
    begin
      yield group
    ensure
      group.remove
    end
  end

  def self.make(limit)
    refusals = []
    places.each do |version, folder|
      return new(version, File.join(folder, "rbloat-test-#{Process.pid}"), limit)
    rescue SystemCallError => e
      refusals << e.message
    end
    raise Unavailable, "no group with a memory limit can be made: #{refusals.join('; ')}"
  end
  private_class_method :make

  # Folders in which one may be made, with their version.
  def self.places
    File.readlines("/proc/self/cgroup", chomp: true).flat_map do |line|
      _number, controllers, path = line.split(":", 3)
      version = controllers.empty? ? 2 : 1
      next [] unless version == 2 || controllers.split(",").include?("memory")

      own = File.join(LAYOUTS.fetch(version).first, path)
      [[version, own], [version, File.dirname(own)]]
    end
  end
  private_class_method :places

  def initialize(version, folder, limit)
    _root, limit_file, swap, @counts = LAYOUTS.fetch(version)
    @folder = folder
    Dir.mkdir(folder)
    begin
      File.write(file(limit_file), limit)
      swap.each { |name, value| File.write(file(name), value || limit) if File.exist?(file(name)) }
      # Some kernels count no kills.
      kills
    rescue SystemCallError
      Dir.rmdir(folder)
      raise
    end
  end

  # The words before a command that let it run in the group.
  def prefix
    ["sh", "-c", 'echo $$ >"$0" && exec "$@"', file("cgroup.procs")]
  end

  # @return [Integer] processes in it that the kernel has killed for want of memory
  def kills
    Integer(File.read(file(@counts))[/^oom_kill (\d+)/, 1] || raise(Errno::ENOENT, "oom_kill in #{file(@counts)}"))
  end

  # The kernel may need a moment for what has ended in it.
  def remove
    Dir.rmdir(@folder)
  rescue Errno::EBUSY
    sleep 0.02
    retry
  end

  private

  def file(name)
    File.join(@folder, name)
  end
end
