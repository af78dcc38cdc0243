# frozen_string_literal: true

require "json"
require "minitest/autorun"
require "open3"
require "rbconfig"
require "rbloat"
require "socket"
require "tempfile"
require "tmpdir"
require_relative "../../testkit/ruby/setting"

# Helpers for all tests: running programs in another process, and waiting for a condition.
module Together
  # The folder of the gem under test. Builds with a sanitizer are elsewhere.
  LIB = ENV.fetch("RBLOAT_TEST_LIB", File.expand_path("../lib", __dir__))
  # The command that runs each program, such as valgrind.
  UNDER = ENV.fetch("RBLOAT_TEST_UNDER", "").split
  PATIENCE = 300

  # Methods for programs: `wait_until`, and `burst`, after which malloc has many free pages.
  PRELUDE = <<~'RUBY'
    require "json"
    require "rbloat"

    def wait_until(seconds = 300)
      limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
      until yield
        raise "waited in vain" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > limit
        sleep 0.02
      end
    end

    def burst(strings = 20_000)
      threads = Array.new(4) do |index|
        Thread.new do
          random = Random.new(index)
          result = Array.new(strings) { "x" * random.rand(64..4_000) }
          sleep 0.001
          result.clear
        end
      end
      threads.each(&:join)
      GC.start
    end
  RUBY

  # Runs the code in a new process, by the command `before` if there is one. Returns the value of its last expression,
  # converted to JSON and back.
  def run_ruby(code, env: {}, options: [], prelude: PRELUDE, before: [])
    program = "#{prelude}\nanswer = begin\n#{code}\nend\nputs \"answer \#{JSON.generate([answer])}\""
    output, errors, status = Open3.capture3(env, *before, *ruby(options), stdin_data: program)
    assert status.success?, "#{status}\n#{errors}\n#{output}"
    @errors = errors
    JSON.parse(output[/^answer (.*)$/, 1]).first
  end

  # The standard error of the last program.
  attr_reader :errors

  # The options come first, so they can name another folder of the gem.
  def ruby(options = [])
    [*UNDER, RbConfig.ruby, *options, "-I", LIB]
  end

  # Calls the block again after `pause` seconds until it returns something.
  def wait_until(pause: 0.02)
    limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE
    until (found = yield)
      flunk "waited in vain" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > limit
      sleep pause
    end
    found
  end

  # Skips the test, and appends the reason to the file that RBLOAT_TEST_SKIPS names. scripts/test counts the reasons and
  # prints them at the end.
  def skip(reason, backtrace = caller)
    if (skips = ENV.fetch("RBLOAT_TEST_SKIPS", nil))
      File.write(skips, "#{self.class}##{name}: #{reason[/.*/]}\n", mode: "a")
    end
    super
  end

  # Skips the test if programs cannot require the library.
  def needs(library)
    skip "#{library} is not installed" unless system(RbConfig.ruby, "-e", "require ARGV[0]", library, err: File::NULL)
  end

  # Skips the test if this Ruby does not have the gem.
  def need(name)
    require name
  rescue LoadError
    skip "ruby-#{name} is not installed"
  end

  # Writes a program that stands in for rbloat, and returns its path. It is not a shell script, since dash and bash
  # crash when the runtime of ThreadSanitizer is preloaded.
  def write_program(folder, code)
    path = File.join(folder, "rbloat")
    File.write(path, "#!#{RbConfig.ruby} --disable=gems\n#{code}", perm: 0o755)
    path
  end

  # The environment variable that preloads a library, in addition to those of this process.
  def preload(library)
    { "LD_PRELOAD" => [ENV.fetch("LD_PRELOAD", nil), library].compact.join(":") }
  end

  def glibc?
    Rbloat.allocator == "glibc"
  end

  def jemalloc
    Setting.library("jemalloc") || skip("libjemalloc2 is not installed")
  end
end

Minitest::Test.include(Together)
