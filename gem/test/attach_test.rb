# frozen_string_literal: true

require_relative "test_helper"
require_relative "../../testkit/ruby/extension"

# The process that may trace this one. A preloaded library replaces a kernel with Yama, and a script
# replaces the program rbloat.
class AttachTest < Minitest::Test
  # Prints the process id as JSON. With --wait, it waits for the file `go` first.
  PROGRAM = <<~'RUBY'
    if ARGV[3] == "--wait"
      File.write("#{__dir__}/waits", "")
      sleep 0.02 until File.exist?("#{__dir__}/go")
    end
    print %({"pid": #{ARGV[1]}})
  RUBY

  # Runs the code in a new process, in which `tracers.call` returns what was allowed so far, in order.
  def run_traced(code)
    Dir.mktmpdir do |folder|
      program = write_program(folder, PROGRAM)
      tracers = File.join(folder, "tracers")
      env = preload(Extension.compile(File.join(__dir__, "native/tracer.c")))
      env = env.merge("RBLOAT_BINARY" => program, "RBLOAT_TEST_TRACERS" => tracers)
      setup = "folder = #{folder.dump}\ntracers = -> { File.readlines(#{tracers.dump}).map(&:to_i) }\n"
      run_ruby(setup + code, env: env)
    end
  end

  def test_a_report_allows_any_process_and_then_what_was_allowed
    tracers, pid = run_traced(<<~RUBY)
      Rbloat.allow_attach(4_242)
      pid = Rbloat.report[:pid]
      Rbloat.allow_attach(:none)
      [tracers.call, pid == Process.pid]
    RUBY
    assert_equal [[4_242, -1, 4_242, 0], true], [tracers, pid]
  end

  def test_a_report_that_ends_leaves_another_one_alone
    during, after = run_traced(<<~RUBY)
      thread = Thread.new { Rbloat.report("--wait") }
      wait_until { File.exist?(folder + "/waits") }
      Rbloat.report
      during = tracers.call.last
      File.write(folder + "/go", "")
      thread.join
      [during, tracers.call.last]
    RUBY
    assert_equal [-1, 0], [during, after]
  end

  def test_a_failed_report_allows_no_longer
    assert_equal [-1, 0], run_traced(<<~RUBY)
      ENV["RBLOAT_BINARY"] = "/nowhere"
      begin
        Rbloat.report
      rescue Rbloat::Error
        tracers.call
      end
    RUBY
  end

  def test_a_forked_process_allows_nothing
    assert_equal [-1, 0], run_traced(<<~RUBY)
      Rbloat.allow_attach(4_242)
      thread = Thread.new { Rbloat.report("--wait") }
      wait_until { File.exist?(folder + "/waits") }
      before = tracers.call.size
      Process.wait(fork { Rbloat.report })
      File.write(folder + "/go", "")
      answer = tracers.call.drop(before)
      thread.join
      answer
    RUBY
  end
end
