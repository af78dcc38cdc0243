# frozen_string_literal: true

require_relative "lib/rbloat/version"

Gem::Specification.new do |spec|
  spec.name = "rbloat"
  spec.version = Rbloat::VERSION
  spec.authors = ["The rbloat authors"]
  spec.summary = "Keeps the memory of a Ruby process low by itself, and tells where it went"
  spec.description = <<~TEXT
    Gives memory that malloc holds on to back to the kernel when that is worth it, lets the GC know of native memory that
    extensions do not report, holds database results compactly, and reports on the process from within.
  TEXT
  spec.licenses = ["MIT", "Apache-2.0"]
  spec.required_ruby_version = ">= 2.7"
  spec.homepage = "https://rubygems.org/gems/rbloat"
  spec.metadata = {
    "documentation_uri" => "https://rubydoc.info/gems/rbloat",
    "changelog_uri" => "https://rubydoc.info/gems/rbloat/file/CHANGELOG.md",
    "rubygems_mfa_required" => "true"
  }

  # `libexec/rbloat` is the binary, where it was built before: `make dist` in the repository, then `rake binary` here.
  spec.files = Dir.chdir(__dir__) do
    Dir["{lib,sig}/**/*.{rb,rbs}", "ext/**/*.{c,h,rb}", "libexec/rbloat", "*.md", "LICENSE-*", ".yardopts"]
  end
  spec.require_paths = ["lib"]
  spec.extensions = ["ext/rbloat/extconf.rb"]
end
