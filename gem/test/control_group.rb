# frozen_string_literal: true

# A control group of the kernel's with a real memory limit, for programs to be run in. It is made below the group that
# this process is in, or beside it, since version 2 wants processes in leaves alone.
class ControlGroup
  # No such group can be made here: the kernel has none, or whoever runs the tests may not.
  class Unavailable < StandardError
  end

  # Where the groups of a version are, the file with the limit, those that keep memory from being swapped with what is
  # written to them (nil: the limit), the file that counts kills, and that with the most that was ever in use.
  Layout = Struct.new(:root, :limit, :swap, :counts, :most)
  LAYOUTS = {
    1 => Layout.new("/sys/fs/cgroup/memory", "memory.limit_in_bytes", { "memory.memsw.limit_in_bytes" => nil },
                    "memory.oom_control", "memory.max_usage_in_bytes"),
    2 => Layout.new("/sys/fs/cgroup", "memory.max", { "memory.swap.max" => "0" }, "memory.events", "memory.peak")
  }.freeze

  HELP = "run it as root, or as `systemd-run --user --scope -p Delegate=yes COMMAND`"

  # Yields a group, and removes it when the block is done, with all that still runs in it.
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
      return new(version, File.join(folder, "rbloat-#{Process.pid}"), limit)
    rescue SystemCallError => e
      refusals << e.message
    end
    raise Unavailable, "no group with a memory limit can be made (#{refusals.join('; ')}): #{HELP}"
  end
  private_class_method :make

  # Folders in which one may be made, with their version.
  def self.places
    File.readlines("/proc/self/cgroup", chomp: true).flat_map do |line|
      _number, controllers, path = line.split(":", 3)
      version = controllers.empty? ? 2 : 1
      next [] unless version == 2 || controllers.split(",").include?("memory")

      own = File.join(LAYOUTS.fetch(version).root, path)
      [[version, own], [version, File.dirname(own)]]
    end
  end
  private_class_method :places

  def initialize(version, folder, limit)
    @layout = LAYOUTS.fetch(version)
    @folder = folder
    Dir.mkdir(folder)
    begin
      File.write(file(@layout.limit), limit)
      @layout.swap.each { |name, value| File.write(file(name), value || limit) if File.exist?(file(name)) }
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
    counts = file(@layout.counts)
    Integer(File.read(counts)[/^oom_kill (\d+)/, 1] || raise(Errno::ENOENT, "oom_kill in #{counts}"))
  end

  # @return [Integer, nil] bytes; nil where the kernel does not tell (version 2 before Linux 5.19)
  def most_bytes
    File.read(file(@layout.most)).to_i if File.exist?(file(@layout.most))
  end

  # The kernel may need a moment for what has ended in it.
  def remove
    Dir.rmdir(@folder)
  rescue Errno::EBUSY
    File.readlines(file("cgroup.procs"), chomp: true).each { |pid| end_process(Integer(pid)) }
    sleep 0.02
    retry
  end

  private

  def end_process(pid)
    Process.kill(:KILL, pid)
  rescue Errno::ESRCH
    nil
  end

  def file(name)
    File.join(@folder, name)
  end
end
