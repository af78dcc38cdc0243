# frozen_string_literal: true

module Rbloat
  # The control group of this process whose memory limit is the tightest, of version 1 or 2.
  #
  # @!attribute [r] limit
  #   @return [Integer] bytes
  # @!attribute [r] usage
  #   @return [String] the file that tells how many bytes are used
  # @!attribute [r] statistics
  #   @return [String] the file that tells how many of these are the cache of files
  # @!attribute [r] cache_word
  #   @return [String] the word before that number
  Cgroup = Struct.new(:limit, :usage, :statistics, :cache_word, keyword_init: true) do
    # @param root [String] where to look for /proc and /sys
    # @return [Cgroup, nil] nil where memory is not limited
    def self.find(root: "/")
      groups = Cgroups.new(root)
      groups.each.min_by(&:limit)
    end
  end

  # All groups above a process that limit its memory, in the hierarchies that are mounted in the usual places.
  class Cgroups
    include Enumerable

    # What is called "unlimited" in version 1 is a number near the largest one; no machine has so much.
    UNLIMITED = 1 << 50

    # By version: files with the limit and with what is used, and the word for the cache of files in memory.stat.
    FILES = {
      2 => %w[memory.max memory.current inactive_file].freeze,
      1 => %w[memory.limit_in_bytes memory.usage_in_bytes total_inactive_file].freeze
    }.freeze

    def initialize(root)
      @root = root
    end

    # @yieldparam group [Cgroup]
    def each
      return to_enum unless block_given?

      folders.each do |version, folder|
        group = read(version, folder)
        yield group if group
      end
    end

    private

    # Each folder with its version. In a container the path may be that of the host, which is not to be seen; then
    # the root of the mount is the container's own group.
    def folders
      File.readlines(File.join(@root, "proc/self/cgroup"), chomp: true).flat_map do |line|
        _number, controllers, path = line.split(":", 3)
        mounts(controllers.split(",")).flat_map do |version, mount|
          upwards(mount, path).map { |folder| [version, folder] }
        end
      end
    rescue SystemCallError
      []
    end

    # Where a hierarchy may be mounted. That of version 2 has no controllers in its name.
    def mounts(controllers)
      return [[2, "sys/fs/cgroup"], [2, "sys/fs/cgroup/unified"]] if controllers.empty?

      controllers.include?("memory") ? [[1, "sys/fs/cgroup/memory"]] : []
    end

    def upwards(mount, path)
      mount = File.join(@root, mount)
      parts = path.to_s.split("/").reject(&:empty?)
      (0..parts.size).map { |count| File.join(mount, *parts.first(count)) }
    end

    def read(version, folder)
      limit_file, usage_file, word = FILES.fetch(version)
      text = File.read(File.join(folder, limit_file)).strip
      return unless text.match?(/\A\d+\z/) && text.to_i.positive? && text.to_i < UNLIMITED

      Cgroup.new(limit: text.to_i, usage: File.join(folder, usage_file),
                 statistics: File.join(folder, "memory.stat"), cache_word: word)
    rescue SystemCallError
      nil
    end
  end
end
