# frozen_string_literal: true

require_relative "test_helper"

# The files of the gem.
class PackageTest < Minitest::Test
  ROOT = File.expand_path("..", __dir__)
  SPEC = Gem::Specification.load(File.join(ROOT, "rbloat.gemspec"))

  def pages
    SPEC.files.grep(/\.md\z/).to_h { |file| [file, File.read(File.join(ROOT, file))] }
  end

  # As GitHub and RubyDoc make them.
  def anchors(text)
    text.scan(/^#+ (.+)$/).map { |(heading)| "##{heading.downcase.gsub(/[^\p{Word}\- ]/, '').tr(' ', '-')}" }
  end

  def test_links_lead_to_files_and_headings_of_the_package
    assert_includes pages.keys, "README.md"
    pages.each do |file, text|
      links = text.scan(/\]\(([^)]+)\)/).flatten.grep_v(%r{\Ahttps?://})
      known = SPEC.files + anchors(text)
      assert_empty links - known, file
    end
  end

  def test_the_package_has_no_page_about_its_development
    refute_includes SPEC.files, "DEVELOPMENT.md"
    pages.each { |file, text| refute_match(/^\#+ Development/, text, file) }
  end
end
