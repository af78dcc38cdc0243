# frozen_string_literal: true

require_relative "test_helper"

# When a trim is worth it: arithmetic in C, tested in C.
class RationTest < Minitest::Test
  EXT = File.expand_path("../ext/rbloat", __dir__)

  def test_ration
    Dir.mktmpdir do |folder|
      sources = [File.join(__dir__, "native/ration_test.c"), File.join(EXT, "ration.c")]
      _output, errors, status = Open3.capture3("cc", "-std=gnu99", "-Wall", "-Werror", "-I#{EXT}", *sources,
                                               "-o", "#{folder}/test")
      assert status.success?, errors
      output, = Open3.capture2("#{folder}/test")
      assert_equal "", output
    end
  end
end
