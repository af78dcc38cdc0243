# frozen_string_literal: true

require_relative "test_helper"
require_relative "../../testkit/ruby/control_group"

# AutoTrim in a real control group, as in a container.
class MemoryLimitTest < Minitest::Test
  LIMIT = 192 * 1024 * 1024
  # The arenas of a machine with eight cores, on any machine.
  ENVIRONMENT = Setting.environment("default").merge("MALLOC_ARENA_MAX" => "64").freeze

  # Workers take requests in turns. A request needs 15 MiB and retains 2 KiB at the end of the heap, so the free memory
  # before that stays resident. After each request there is time for a trim, if one is due: the share allows only the
  # first one, and those near the limit.
  SERVER = <<~'RUBY'
    WORKERS = 24
    trims = ARGV.delete("--auto-trim")
    Rbloat::AutoTrim.start(share: 1e-9) if trims
    group = Rbloat::Cgroup.find
    near = Rbloat::AutoTrim::PRESSURE * group.limit
    used = lambda do
      cache = File.read(group.statistics)[/^#{group.cache_word} (\d+)/, 1].to_i
      File.read(group.usage).to_i - cache
    end
    kept = []
    answers = Queue.new
    requests = Array.new(WORKERS) do
      Queue.new.tap do |queue|
        Thread.new do
          while queue.pop
            strings = Array.new(8_000) { "x" * 2_000 }
            kept << "x" * 2_000
            strings.clear
            GC.start
            answers << true
          end
        end
      end
    end
    2.times do
      requests.each do |queue|
        queue << true
        answers.pop
        wait_until { used.call < near } if trims
      end
    end
    puts JSON.generate(group.to_h.merge(Rbloat::AutoTrim.stats))
  RUBY

  def test_what_is_killed_without_it_survives_with_it
    skip "only glibc's malloc is trimmed" unless glibc?
    ControlGroup.with_memory(LIMIT) do |group|
      _output, errors, status = serve(group)
      assert_equal [Signal.list["KILL"], 1], [status.termsig, group.kills], errors
    end
    ControlGroup.with_memory(LIMIT) do |group|
      output, errors, status = serve(group, "--auto-trim")
      assert status.success?, "#{status}\n#{errors}"
      stats = JSON.parse(output)
      assert_equal [LIMIT, 0], [stats["limit"], group.kills]
      assert_operator stats["trims_under_pressure"], :>, 0
      assert_operator stats["returned_bytes"], :>, LIMIT
    end
  rescue ControlGroup::Unavailable => e
    skip e.message
  end

  private

  def serve(group, *arguments)
    Open3.capture3(ENVIRONMENT, *group.prefix, *ruby, "-", *arguments, stdin_data: PRELUDE + SERVER)
  end
end
