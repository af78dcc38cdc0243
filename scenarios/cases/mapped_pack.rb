# frozen_string_literal: true

# A repository that stays open maps its packs (libgit2/rugged#695, affromero/gitpane#65), also if `git gc` has replaced them.

# Its library is a gem, and tests start scenarios without RubyGems.
require "rubygems"
require "rugged"
require "tmpdir"
require_relative "../lib/scenario"

# The repository that is open.
module Repo
  class << self
    attr_reader :main

    # Creates one with a pack of random blobs, and reads all of it.
    def open(folder, blobs)
      Rugged::Repository.init_at(folder, :bare)
      random = Random.new(1)
      import = %w[git -c core.compression=0 -c fastimport.unpackLimit=0 fast-import --quiet]
      IO.popen({ "GIT_DIR" => folder }, import, "wb") { |git| blobs.times { git << "blob\ndata #{1 << 20}\n" << random.bytes(1 << 20) << "\n" } }
      @main = Rugged::Repository.new(folder)
      @main.each_id { |id| @main.read(id).len }
    end
  end
end

Scenario.run do |scale|
  # Not in /tmp, which may be memory.
  Dir.mktmpdir(nil, "/var/tmp") do |folder|
    Thread.new { Repo.open(folder, (60 * scale).ceil) }.join
    { pack_bytes: File.size(Dir["#{folder}/objects/pack/*.pack"].first) }
  end
end
