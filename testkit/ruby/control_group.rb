# frozen_string_literal: true

# A real control group with a limit, to run programs in. It is created below the group of this process or, since
# version 2 allows processes only in leaves, beside it.
class ControlGroup
  # Raised if no group can be created, for want of kernel support or permission.
  class Unavailable < StandardError
  end

  # The root folders of the controllers, for each version.
  ROOTS = { 1 => ->(controller) { "/sys/fs/cgroup/#{controller}" }, 2 => ->(_controller) { "/sys/fs/cgroup" } }.freeze

  # For each version: the file for the limit; files that prevent swapping, with the value to write (nil: the limit); the
  # file that counts kills; and the file with the peak usage.
  Memory = Struct.new(:limit, :swap, :counts, :peak)
  MEMORY = {
    1 => Memory.new("memory.limit_in_bytes", { "memory.memsw.limit_in_bytes" => nil }, "memory.oom_control",
                    "memory.max_usage_in_bytes"),
    2 => Memory.new("memory.max", { "memory.swap.max" => "0" }, "memory.events", "memory.peak")
  }.freeze

  # The period of a processor limit, in microseconds. It is the kernel's default.
  PERIOD = 100_000

  HELP = "run it as root, or as `systemd-run --user --scope -p Delegate=yes COMMAND`"

  class << self
    # Yields a group that may use +bytes+ of memory. Afterwards kills the processes in it and removes it.
    # @raise [Unavailable]
    def with_memory(bytes, &block)
      with("memory", block) { |group| group.limit_memory(bytes) }
    end

    # The same with a limit on CPU time: +processors+ may be a fraction.
    # @raise [Unavailable]
    def with_processors(processors, &block)
      with("cpu", block) { |group| group.limit_processors(processors) }
    end

    private

    def with(controller, use, &limit)
      group = make(controller, &limit)
      begin
        use.call(group)
      ensure
        group.remove
      end
    end

    def make(controller, &limit)
      refusals = []
      places(controller).each do |version, folder|
        return new(version, File.join(folder, "rbloat-#{Process.pid}"), &limit)
      rescue SystemCallError => e
        refusals << e.message
      end
      raise Unavailable, "cannot create a control group with a #{controller} limit (#{refusals.join('; ')}): #{HELP}"
    end

    # Versions, and folders to create the group in.
    def places(controller)
      File.readlines("/proc/self/cgroup", chomp: true).flat_map do |line|
        _number, controllers, path = line.split(":", 3)
        version = controllers.empty? ? 2 : 1
        next [] unless version == 2 || controllers.split(",").include?(controller)

        root = ROOTS.fetch(version).call(controller)
        own = File.join(root, path)
        [own, File.dirname(own), root].uniq.map { |folder| [version, folder] }
      end
    end
  end

  def initialize(version, folder)
    @version = version
    @folder = folder
    Dir.mkdir(folder)
    begin
      yield self
    rescue SystemCallError
      Dir.rmdir(folder)
      raise
    end
  end

  def limit_memory(bytes)
    File.write(file(memory.limit), bytes)
    memory.swap.each { |name, value| File.write(file(name), value || bytes) if File.exist?(file(name)) }
    # Raises if the kernel does not count kills.
    kills
  end

  def limit_processors(processors)
    quota = (processors * PERIOD).round
    @version == 1 ? File.write(file("cpu.cfs_quota_us"), quota) : File.write(file("cpu.max"), "#{quota} #{PERIOD}")
  end

  # The words that run a command in the group when put before it.
  def prefix
    ["sh", "-c", 'echo $$ >"$0" && exec "$@"', file("cgroup.procs")]
  end

  # @return [Integer] the number of processes in the group that the OOM killer killed
  def kills
    counts = file(memory.counts)
    Integer(File.read(counts)[/^oom_kill (\d+)/, 1] || raise(Errno::ENOENT, "oom_kill in #{counts}"))
  end

  # @return [Integer, nil] the peak usage in bytes; nil for version 2 before Linux 5.19
  def peak_bytes
    File.read(file(memory.peak)).to_i if File.exist?(file(memory.peak))
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

  def memory
    MEMORY.fetch(@version)
  end

  def end_process(pid)
    Process.kill(:KILL, pid)
  rescue Errno::ESRCH
    nil
  end

  def file(name)
    File.join(@folder, name)
  end
end
