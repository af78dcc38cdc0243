# frozen_string_literal: true

require_relative "test_helper"

# The files of both gems.
class PackageTest < Minitest::Test
  ROOT = File.expand_path("..", __dir__)
  SPECS = %w[rbloat rbloat-results].to_h do |name|
    [name, Gem::Specification.load(File.join(ROOT, "#{name}.gemspec"))]
  end.freeze

  def pages(spec)
    spec.files.grep(/\.md\z/).to_h { |file| [file, File.read(File.join(ROOT, file))] }
  end

  # As GitHub and RubyDoc make them.
  def anchors(text)
    text.scan(/^#+ (.+)$/).map { |(heading)| "##{heading.downcase.gsub(/[^\p{Word}\- ]/, '').tr(' ', '-')}" }
  end

  def test_links_lead_to_files_and_headings_of_the_package
    assert_includes SPECS["rbloat"].files, "README.md"
    assert_includes SPECS["rbloat-results"].files, "RESULTS.md"
    SPECS.each_value do |spec|
      pages(spec).each do |file, text|
        links = text.scan(/\]\(([^)]+)\)/).flatten.grep_v(%r{\Ahttps?://})
        assert_empty links - spec.files - anchors(text), file
      end
    end
  end

  # Otherwise the one that is installed last would overwrite the other's.
  def test_each_file_of_the_library_is_in_one_gem
    files = SPECS.transform_values { |spec| spec.files.grep(%r{\A(lib|ext|sig)/}) }
    assert_equal Dir.glob(%w[lib/**/*.rb ext/**/*.{c,h,rb} sig/*.rbs], base: ROOT).sort, files.values.flatten.sort
  end

  def test_result_sets_need_no_file_of_the_other_gem
    loaded = run_ruby(<<~RUBY, prelude: 'require "json"; require "rbloat/results"')
      $LOADED_FEATURES.filter_map { |file| file[%r{/(rbloat/.*\\.rb|rbloat\\.rb)\\z}, 1] }
    RUBY
    assert_includes loaded, "rbloat/results.rb"
    assert_empty loaded.map { |file| "lib/#{file}" } - SPECS["rbloat-results"].files
  end

  def test_the_package_has_no_page_about_its_development
    SPECS.each_value do |spec|
      refute_includes spec.files, "DEVELOPMENT.md"
      pages(spec).each { |file, text| refute_match(/^\#+ Development/, text, file) }
    end
  end
end
