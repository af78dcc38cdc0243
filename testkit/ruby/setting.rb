# frozen_string_literal: true

# Settings of malloc and of the gem for a program, with the same names as in `rbloat compare`.
module Setting
  GEM = File.expand_path("../../gem/lib", __dir__)
  LIBRARIES = { "jemalloc" => "libjemalloc.so.2", "tcmalloc" => "libtcmalloc_minimal.so.4",
                "mimalloc" => "libmimalloc.so.2" }.freeze
  NAMES = ["default", "arena2", *LIBRARIES.keys, "gem"].freeze

  class << self
    # Returns the environment variables of a setting. Variables of other settings are nil.
    def environment(name)
      others = { "MALLOC_ARENA_MAX" => nil, "LD_PRELOAD" => nil, "RBLOAT_AUTO_TRIM" => nil, "RUBYOPT" => nil }
      others.merge(own(name))
    end

    # Returns true if a process has a setting, as far as that is visible from outside.
    def in_force?(name, pid)
      case name
      when "default" then in_force_of(pid).empty?
      else in_force_of(pid) == [name]
      end
    end

    # Returns the path of the library of jemalloc, tcmalloc or mimalloc, or nil if it is not installed.
    def library(name)
      Dir["/usr/lib/*/#{LIBRARIES.fetch(name)}", "/usr/lib/#{LIBRARIES.fetch(name)}"].first
    end

    private

    def own(name)
      case name
      when "default" then {}
      when "arena2" then { "MALLOC_ARENA_MAX" => "2" }
      when "gem" then { "RUBYOPT" => "-I#{GEM} -rrbloat/core", "RBLOAT_AUTO_TRIM" => "1" }
      else { "LD_PRELOAD" => library(name) || raise("#{name} is not installed") }
      end
    end

    def in_force_of(pid)
      maps = File.read("/proc/#{pid}/maps")
      found = LIBRARIES.select { |_name, file| maps.include?(file[/\A[^.]+/]) }.keys
      found << "arena2" if File.read("/proc/#{pid}/environ").split("\0").include?("MALLOC_ARENA_MAX=2")
      found << "gem" if Dir["/proc/#{pid}/task/*/comm"].any? { |comm| File.read(comm).start_with?("rbloat-trim") }
      found
    end
  end
end
