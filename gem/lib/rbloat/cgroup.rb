# frozen_string_literal: true

module Rbloat
  # A control group with a memory limit, of version 1 or 2.
  #
  # @!attribute [r] limit
  #   @return [Integer] the limit in bytes
  # @!attribute [r] usage
  #   @return [String] the file with the number of bytes in use
  # @!attribute [r] statistics
  #   @return [String] the file with the number of these bytes that are cached files
  # @!attribute [r] cache_word
  #   @return [String] the word before that number
  Cgroup = Struct.new(:limit, :usage, :statistics, :cache_word, keyword_init: true) do
    # Finds the group of this process that has the lowest limit.
    #
    # @param root [String] the folder that contains proc and sys
    # @return [Cgroup, nil] nil if memory is not limited
    def self.find(root: "/")
      groups = Cgroups.new(root)
      groups.each.min_by(&:limit)
    end

    # @return [Integer, nil] the bytes in use, without cached files, which the kernel drops by itself; nil if they
    #   cannot be read
    def used_bytes
      cache = statistics ? File.read(statistics)[/^#{cache_word} (\d+)$/, 1].to_i : 0
      File.read(usage).to_i - cache
    rescue SystemCallError
      nil
    end
  end

  # All control groups that limit the memory of this process, in hierarchies that are mounted in the usual folders.
  class Cgroups
    include Enumerable

    # "Unlimited" in version 1 is a number near 2**63. No machine has 1 PiB.
    UNLIMITED = 1 << 50

    # By version: the files with the limit and the usage, and the word for cached files in memory.stat.
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

    # Pairs of a version and a folder. A container may see the path of its group on the host, which it cannot open. Then
    # the root of the mount is the container's group.
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

    # Mount points of the hierarchy. Version 2 lists no controllers.
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
  private_constant :Cgroups
end
