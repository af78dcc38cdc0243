# frozen_string_literal: true

require_relative "lib/rbloat/version"

Gem::Specification.new do |spec|
  spec.name = "rbloat"
  spec.version = Rbloat::VERSION
  spec.authors = ["The rbloat authors"]
  spec.summary = "Keeps the memory use of a Ruby process low, and reports where the memory is"
  spec.description = <<~TEXT
    Returns free memory of malloc to the kernel when the saving is worth the cost. Reports native memory to the GC that
    extensions do not report. Reports on the memory of its own process.
  TEXT
  spec.licenses = ["MIT", "Apache-2.0"]
  spec.required_ruby_version = ">= 2.7"
  spec.homepage = "https://rubygems.org/gems/rbloat"
  spec.metadata = {
    "documentation_uri" => "https://rubydoc.info/gems/rbloat",
    "changelog_uri" => "https://rubydoc.info/gems/rbloat/file/CHANGELOG.md",
    "rubygems_mfa_required" => "true"
  }

  pages = %w[README.md MEASUREMENTS.md CHANGELOG.md LICENSE-* .yardopts]
  files = Dir.glob([*pages, "{lib,sig}/**/*.{rb,rbs}", "ext/rbloat/*.{c,h,rb}"], base: __dir__)
  spec.files = files.grep_v(/results/) # of the gem rbloat-results
  spec.require_paths = ["lib"]
  spec.extensions = ["ext/rbloat/extconf.rb"]
end
