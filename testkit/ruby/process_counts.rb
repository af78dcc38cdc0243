# frozen_string_literal: true

# What processes have used so far.
module ProcessCounts
  PAGE = 4096
  TICKS_PER_SECOND = 100.0

  class << self
    # Returns the seconds of CPU time in the program (`user`) and in the kernel (`system`), the number of minor page
    # `faults`, and the seconds of CPU time of AutoTrim's threads (`own`).
    def of(pids)
      fields = pids.map { |pid| File.read("/proc/#{pid}/stat")[/\) (.*)/, 1].split.map(&:to_i) }
      user, system = [11, 12].map { |index| fields.sum { |each| each[index] } / TICKS_PER_SECOND }
      { user: user, system: system, faults: fields.sum { |each| each[7] }, own: own_seconds(pids) }
    end

    # Returns by how much the counts have grown.
    def since(before, pids)
      of(pids).to_h { |name, count| [name, count - before.fetch(name)] }
    end

    # Returns bytes.
    def rss(pids)
      pids.sum { |pid| File.read("/proc/#{pid}/statm").split[1].to_i * PAGE }
    end

    private

    def own_seconds(pids)
      tasks = pids.flat_map { |pid| Dir["/proc/#{pid}/task/*"] }
      tasks.sum { |task| File.read("#{task}/comm") == "rbloat-trim\n" ? File.read("#{task}/schedstat").to_i / 1e9 : 0 }
    end
  end
end
