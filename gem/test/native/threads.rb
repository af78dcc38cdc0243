# frozen_string_literal: true

# For `rake valgrind`, `asan`, `tsan` and `stress`: both native threads are busy while the GC runs, Ruby threads
# allocate, and processes fork. Then many threads start and stop them.

require "rbloat"

Rbloat::AutoTrim.start(share: 1.0, least_bytes: 1)
Rbloat::NativePressure.start
20.times do |round|
  threads = Array.new(3) { |index| Thread.new { Array.new(500) { "x" * (100 * (index + round)) } } }
  threads.each(&:join)
  GC.start
  Rbloat::AutoTrim.quiet!
  sleep 0.05
  next unless (round % 5).zero? && ENV["RBLOAT_TEST_FORKS"] != "0"

  child = fork do
    GC.start
    Rbloat::AutoTrim.stop
    Rbloat::NativePressure.stop
    exit!(0)
  end
  _pid, status = Process.wait2(child)
  raise "a forked process failed: #{status}" unless status.success?
end
Rbloat.trim
Rbloat.stats
Rbloat.probe { Array.new(100) { "x" * 1_000 } }
raise "no look was taken" unless Rbloat::NativePressure.stats[:looks].positive?

restarts = Array.new(8) do |index|
  Thread.new do
    20.times do |round|
      service = (index + round).even? ? Rbloat::AutoTrim : Rbloat::NativePressure
      (index + round) % 4 < 2 ? service.start : service.stop
      service.stats
    end
  end
end
restarts.each(&:join)
Rbloat::AutoTrim.stop
