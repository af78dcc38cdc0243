# frozen_string_literal: true

# A control group of version 1 or 2 with a limit of memory, below the one that we are in. It must be removed.
class MemoryGroup
  # Why there can be none, and what would help.
  Unavailable = Class.new(StandardError)

  HELP = "run it as root, or in a group of its own: systemd-run --user --scope -p Delegate=yes %s"

  # How the files of a version are called.
  Version = Struct.new(:limit, :swap_limit, :most, :events)
  VERSIONS = {
    1 => Version.new("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes",
                     "memory.oom_control"),
    2 => Version.new("memory.max", "memory.swap.max", "memory.peak", "memory.events")
  }.freeze

  attr_reader :folder

  def initialize(limit)
    number, own = self.class.own
    @version = VERSIONS.fetch(number)
    @folder = "#{own}/rbloat-#{Process.pid}-#{limit}"
    Dir.mkdir(@folder)
    write(@version.limit, limit)
    # What does not fit is to be killed, not swapped out: version 1 counts both together, version 2 swap alone. Where
    # the kernel does not count swap there is no such file.
    write(@version.swap_limit, number == 1 ? limit : 0) if File.exist?("#{@folder}/#{@version.swap_limit}")
  rescue SystemCallError => error
    Dir.rmdir(@folder) if @folder && Dir.exist?(@folder)
    raise Unavailable, "#{error.message}: #{format(HELP, $PROGRAM_NAME)}"
  end

  # The line of shell by which a process enters it.
  def enter
    "echo $$ > '#{folder}/cgroup.procs'"
  end

  # How many processes of it were killed because it was full.
  def kills
    File.read("#{folder}/#{@version.events}")[/^oom_kill (\d+)/, 1].to_i
  end

  # The most bytes that were charged to it; nil where the kernel does not tell (version 2 before Linux 5.19).
  def most_bytes
    path = "#{folder}/#{@version.most}"
    File.read(path).to_i if File.exist?(path)
  end

  # Ends what runs in it.
  def remove
    200.times do
      pids = File.read("#{folder}/cgroup.procs").split.map(&:to_i)
      pids.each { |pid| kill(pid) }
      return Dir.rmdir(folder) if pids.empty?

      sleep 0.05
    end
  end

  class << self
    # The version, and the folder of the group that we are in.
    def own
      groups = File.readlines("/proc/self/cgroup", chomp: true).map { |line| line.split(":", 3) }
      mounts = File.readlines("/proc/self/mountinfo", chomp: true).map { |line| line.split(" - ") }
      @own ||= first_version(groups, mounts) || second_version(groups, mounts) ||
               raise(Unavailable, "no control groups with a memory controller are mounted here")
    end

    private

    def first_version(groups, mounts)
      path = groups.find { |_, controllers, _| controllers.split(",").include?("memory") }&.last or return
      folder = folder(path, mounts) { |type, options| type == "cgroup" && options.split(",").include?("memory") }
      [1, folder] if folder
    end

    # Only groups without processes may hand their controllers on, so we go to one below ours first.
    def second_version(groups, mounts)
      path = groups.find { |number, _, _| number == "0" }&.last or return
      folder = folder(path, mounts) { |type, _| type == "cgroup2" } or return
      return unless File.read("#{folder}/cgroup.controllers").split.include?("memory")

      unless File.read("#{folder}/cgroup.subtree_control").split.include?("memory")
        Dir.mkdir("#{folder}/rbloat-driver")
        File.write("#{folder}/rbloat-driver/cgroup.procs", Process.pid.to_s)
        File.write("#{folder}/cgroup.subtree_control", "+memory")
      end
      [2, folder]
    end

    # In a container the mount's root may be our group, or one above it.
    def folder(path, mounts)
      left, = mounts.find do |_, right|
        type, _, options = right.split
        yield type, options
      end
      return unless left

      root, mount = left.split.values_at(3, 4)
      below = root == "/" ? path : path.delete_prefix(root)
      [File.join(mount, below), mount].find { |folder| Dir.exist?(folder) }
    end
  end

  private

  def write(name, value)
    File.write("#{folder}/#{name}", value.to_s)
  end

  def kill(pid)
    Process.kill(:KILL, pid)
  rescue Errno::ESRCH
    nil
  end
end
