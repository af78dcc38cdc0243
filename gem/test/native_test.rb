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
      FileUtils.cp("#{folder}/build/rbloat.so", "#{folder}/lib/rbloat")
      answer = run_ruby(<<~RUBY, options: ["-I", "#{folder}/lib"])
        Rbloat.configuration.profile = :job
        2.times { Rbloat.start }
        [Rbloat.start, Rbloat.trim, Rbloat::AutoTrim.running?, Rbloat.stats.keys, Rbloat.stop]
      RUBY
      assert_equal [false, 0, false, ["rss_bytes"], false], answer
      assert_equal 1, errors.scan(/do nothing, since this process uses another malloc, not glibc's$/).size
    end
  end

  private

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
