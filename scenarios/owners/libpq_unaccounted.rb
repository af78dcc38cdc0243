# frozen_string_literal: true

# Results of PostgreSQL as in pg_results, held by an extension that tells Ruby nothing: libpq_unaccounted.c. It is
# compiled when this runs, and kept in target/.

require "digest"
require "fileutils"
require "rbconfig"
require_relative "../lib/owners"

TOTAL = 1_000
ROWS = "SELECT repeat('x', 1000) FROM generate_series(1, 100)"
SOURCE = File.join(__dir__, "libpq_unaccounted.c")

# Compiles the extension for this Ruby, unless it exists. Other processes may do so at the same time.
def extension
  built_for = Digest::SHA256.hexdigest(File.read(SOURCE) + RUBY_DESCRIPTION)[0, 16]
  folder = File.expand_path("../../target/scenarios/#{built_for}", __dir__)
  library = File.join(folder, "libpq_unaccounted.so")
  return library if File.exist?(library)

  FileUtils.mkdir_p(folder)
  draft = "#{library}.#{Process.pid}"
  headers = RbConfig::CONFIG.values_at("rubyhdrdir", "rubyarchhdrdir").map { |it| "-I#{it}" }
  command = ["cc", "-shared", "-fPIC", "-O1", "-g", *headers, "-o", draft, SOURCE, "-l:libpq.so.5"]
  system(*command, exception: true)
  File.rename(draft, library)
  library
end

require extension

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { Unaccounted.query(ROWS) }
end
