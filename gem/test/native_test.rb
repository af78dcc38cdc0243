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

  private

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
