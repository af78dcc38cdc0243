# frozen_string_literal: true

require "fileutils"
require "json"
require "open3"

# The same application in a control group that is too small for it under the default setting: the processes that are
# killed under each setting.
class Limited
  FOLDER = File.join(Comparison::FOLDER, "limited")

  def self.needs
    Rails.needs
  end

  def initialize(seconds:, **)
    @seconds = seconds
  end

  def run
    FileUtils.mkdir_p(FOLDER)
    output, status = Open3.capture2("scenarios/rails/limited", "--seconds", @seconds.to_s, "-o", FOLDER, chdir: ROOT)
    status.success? or abort("experiments: scenarios/rails/limited failed")
    File.write("#{FOLDER}/limited.json", output)
  end

  def done?
    File.exist?("#{FOLDER}/limited.json")
  end

  def section
    found = JSON.parse(File.read("#{FOLDER}/limited.json"))
    rows = found.fetch("settings").map { |setting| row(setting) }
    <<~SECTION
      ## The Rails application in too little memory

      #{found['workers']} workers with #{found['threads']} threads each run in a control group of #{(found['limit_bytes'] / Comparison::MIB).round} MiB, without swap. When the
      group is full, the kernel kills a worker, and Puma starts another one. The requests that fail are those that a killed
      worker was serving.

      The load and the limit were chosen so that the memory in use fits into the limit, but not together with the memory
      that malloc retains. With larger exports, two at once, the kernel killed workers with the gem too, because a trim
      cannot free memory in use. In the published case, pods of 3 GB were killed about once a minute with glibc's malloc,
      and never with jemalloc.

          scenarios/rails/limited --seconds #{found['settings'].first['seconds']}
          #{found['load']}

      | setting | killed | killed per 10 minutes | requests | failed | median latency, ms | 99th percentile, ms | peak of the group, MiB |
      |---|---|---|---|---|---|---|---|
      #{rows.join("\n")}

      ![Memory of the group under each setting, its limit, and kills](#{picture(found)})
    SECTION
  end

  private

  def row(setting)
    most = setting["most_bytes"] ? (setting["most_bytes"] / Comparison::MIB).round : ""
    "| #{[*setting.values_at('setting', 'kills', 'kills_per_10_minutes', 'requests', 'failed', 'p50_ms', 'p99_ms'),
          most].join(' | ')} |"
  end

  def picture(found)
    recordings = found.fetch("settings").map { |setting| File.join(FOLDER, setting.fetch("recording")) }
    FileUtils.mkdir_p(Comparison::PICTURES)
    system(RBLOAT, "report", *recordings, "-o", "#{Comparison::PICTURES}/limited.svg", exception: true)
    "experiments/limited.svg"
  end
end
