# frozen_string_literal: true

require_relative "test_helper"

# The parts of the extension that are independent of Ruby, tested in C.
class NativeTest < Minitest::Test
  EXT = File.expand_path("../ext/rbloat", __dir__)

  def test_ration
    assert_equal "", failures_of("ration")
  end

  def test_process
    skip "needs Linux" unless RUBY_PLATFORM.include?("linux")
    assert_equal "", failures_of("process")
  end

  # As on musl and macOS, which lack functions of glibc. HAVE_MALLOC_TRIM is also in Ruby's own headers.
  def test_without_glibc_it_loads_and_says_once_that_it_does_nothing
    Dir.mktmpdir do |folder|
      FileUtils.cp_r("#{LIB}/.", "#{folder}/lib")
      build("#{folder}/build", "-UHAVE_LINUX_FUTEX_H")
      Dir["#{folder}/lib/**/rbloat.so"].each { |file| FileUtils.cp("#{folder}/build/rbloat.so", file) }
      answer = run_ruby(<<~RUBY, options: ["-I", "#{folder}/lib"])
        Rbloat.configuration.profile = :job
        2.times { Rbloat.start }
        [Rbloat.start, Rbloat.trim, Rbloat::AutoTrim.running?, Rbloat.stats.keys, Rbloat.stop]
      RUBY
      assert_equal [false, 0, false, ["rss_bytes"], false], answer
      assert_equal 1, errors.scan(/do nothing, since this process uses another malloc, not glibc's$/).size
    end
  end

  EXTENSION = %r{rbloat/(?:[\d.]+/)?rbloat\.so\z}.freeze

  def test_a_platform_gem_has_an_extension_for_each_ruby
    assert_equal 1, extensions_loaded_from("lib/rbloat/#{RUBY_VERSION[/\A\d+\.\d+/]}").size
  end

  # RubyGems need not copy it into `lib`, where it was expected.
  def test_the_extension_may_be_in_a_folder_of_its_own
    assert_equal 1, extensions_loaded_from("extensions/rbloat").size
  end

  private

  # Puts the extension into this folder only.
  def extensions_loaded_from(place)
    Dir.mktmpdir do |folder|
      FileUtils.cp_r(LIB, "#{folder}/lib")
      FileUtils.rm(Dir["#{folder}/lib/**/rbloat.so"])
      FileUtils.mkdir_p("#{folder}/#{place}")
      FileUtils.cp($LOADED_FEATURES.grep(EXTENSION).first, "#{folder}/#{place}/rbloat.so")
      loaded = run_ruby("$LOADED_FEATURES", options: ["-I", "#{folder}/lib", "-I", "#{folder}/extensions"])
      loaded.grep(EXTENSION).select { |file| File.dirname(file) == "#{folder}/#{place}" }
    end
  end

  def build(folder, flag)
    FileUtils.mkdir_p(folder)
    output, status = Open3.capture2e(RbConfig.ruby, "#{EXT}/extconf.rb", chdir: folder)
    assert status.success?, output
    output, status = Open3.capture2e("make", "ARCH_FLAG=#{flag}", chdir: folder)
    assert status.success?, output
  end

  def failures_of(part)
    Dir.mktmpdir do |folder|
      sources = [File.join(__dir__, "native/#{part}_test.c"), File.join(EXT, "#{part}.c")]
      _output, errors, status = Open3.capture3("cc", "-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-Wall", "-Werror",
                                               "-I#{EXT}", *sources, "-o", "#{folder}/test")
      assert status.success?, errors
      output, status = Open3.capture2("#{folder}/test")
      assert_equal status.success?, output.empty?, status
      output
    end
  end
end
