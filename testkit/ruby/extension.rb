# frozen_string_literal: true

require "digest"
require "fileutils"
require "rbconfig"

# C extensions for tests and measurements. They are compiled on first use, and kept in target/extensions.
module Extension
  FOLDER = File.expand_path("../../target/extensions", __dir__)
  # An extension of libpq that does not tell Ruby about the memory of its results.
  LIBPQ_UNACCOUNTED = [File.join(__dir__, "libpq_unaccounted.c"), "-l:libpq.so.5"].freeze

  # Compiles a C file for this Ruby, and returns the path of the library. Several processes may do so at the same time.
  def self.compile(source, *libraries)
    built_for = Digest::SHA256.hexdigest(File.read(source) + RUBY_DESCRIPTION)[0, 16]
    library = File.join(FOLDER, built_for, "#{File.basename(source, '.c')}.so")
    return library if File.exist?(library)

    FileUtils.mkdir_p(File.dirname(library))
    draft = "#{library}.#{Process.pid}"
    headers = RbConfig::CONFIG.values_at("rubyhdrdir", "rubyarchhdrdir").map { |folder| "-I#{folder}" }
    system("cc", "-shared", "-fPIC", "-O1", "-g", *headers, "-o", draft, source, *libraries, exception: true)
    File.rename(draft, library)
    library
  end
end
