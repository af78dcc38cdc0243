# frozen_string_literal: true

# A real control group with a memory limit, to run programs in. It is created below the group of this process or, since
# version 2 allows processes only in leaves, beside it.
class ControlGroup
  # Raised if no group can be created, for want of kernel support or permission.
  class Unavailable < StandardError
  end

  # For each version: the root folder; the file for the limit; files that prevent swapping, with the value to write
  # (nil: the limit); the file that counts kills; and the file with the peak usage.
  Layout = Struct.new(:root, :limit, :swap, :counts, :most)
  LAYOUTS = {
    1 => Layout.new("/sys/fs/cgroup/memory", "memory.limit_in_bytes", { "memory.memsw.limit_in_bytes" => nil },
                    "memory.oom_control", "memory.max_usage_in_bytes"),
    2 => Layout.new("/sys/fs/cgroup", "memory.max", { "memory.swap.max" => "0" }, "memory.events", "memory.peak")
  }.freeze

  HELP = "run it as root, or as `systemd-run --user --scope -p Delegate=yes COMMAND`"

  # Yields a group. Afterwards kills the processes in it and removes it.
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
    raise Unavailable, "cannot create a control group with a memory limit (#{refusals.join('; ')}): #{HELP}"
  end
  private_class_method :make

  # Versions, and folders to create the group in.
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
      # Raises if the kernel does not count kills.
      kills
    rescue SystemCallError
      Dir.rmdir(folder)
      raise
    end
  end

  # The words that run a command in the group when put before it.
  def prefix
    ["sh", "-c", 'echo $$ >"$0" && exec "$@"', file("cgroup.procs")]
  end

  # @return [Integer] the number of processes in the group that the OOM killer killed
  def kills
    counts = file(@layout.counts)
    Integer(File.read(counts)[/^oom_kill (\d+)/, 1] || raise(Errno::ENOENT, "oom_kill in #{counts}"))
  end

  # @return [Integer, nil] the peak usage in bytes; nil for version 2 before Linux 5.19
  def most_bytes
    File.read(file(@layout.most)).to_i if File.exist?(file(@layout.most))
  end

  # The group is busy for a moment after its last process has ended.
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
