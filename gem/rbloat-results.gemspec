# frozen_string_literal: true

require_relative "lib/rbloat/version"

Gem::Specification.new do |spec|
  spec.name = "rbloat-results"
  spec.version = Rbloat::VERSION
  spec.authors = ["The rbloat authors"]
  spec.summary = "Holds a database result in one object, whose size the GC knows"
  spec.description = <<~TEXT
    Takes over the memory of a PG::Result, or copies a Mysql2::Result. Rows and values become objects when they are read.
    Needs no other gem but pg or mysql2.
  TEXT
  spec.licenses = ["MIT", "Apache-2.0"]
  spec.required_ruby_version = ">= 2.7"
  spec.homepage = "https://rubygems.org/gems/rbloat-results"
  spec.metadata = {
    "documentation_uri" => "https://rubydoc.info/gems/rbloat-results",
    "changelog_uri" => "https://rubydoc.info/gems/rbloat-results/file/CHANGELOG.md",
    "rubygems_mfa_required" => "true"
  }

  files = %w[RESULTS*.md CHANGELOG.md LICENSE-* lib/rbloat/results.rb lib/rbloat/results/**/*.rb sig/rbloat-results.rbs
             ext/rbloat_results/*.{c,h,rb}]
  spec.files = Dir.glob(files, base: __dir__)
  spec.require_paths = ["lib"]
  spec.extensions = ["ext/rbloat_results/extconf.rb"]
end
