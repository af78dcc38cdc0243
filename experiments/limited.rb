# frozen_string_literal: true

require "fileutils"
require "json"
require "open3"

# The same application in a control group whose limit the default breaks: how many of its processes are killed.
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

      #{found['workers']} workers with #{found['threads']} threads each in a control group of #{found['limit_bytes'] / 1_000_000}
      million bytes, without swap. The kernel kills a worker when the group is full, and Puma starts another one. What
      fails is what a killed worker was at. Load and limit were chosen so that what malloc retains breaks the limit and what
      Ruby has in use fits into it: with larger exports, two at once, the gem's workers were killed as well, since no trim frees
      what is in use. Published were pods of 3 GB that were killed about once a minute with glibc's malloc, and none with
      jemalloc.

          scenarios/rails/limited --seconds #{found['settings'].first['seconds']}
          #{found['load']}

      | setting | killed | killed in 10 minutes | requests | failed | half within, ms | 99 % within, ms | most in the group, MB |
      |---|---|---|---|---|---|---|---|
      #{rows.join("\n")}

      ![What the group had in use under each setting, its limit, and what was killed](#{picture(found)})
    SECTION
  end

  private

  def row(setting)
    most = setting["most_bytes"] ? (setting["most_bytes"] / Comparison::MB).round : ""
    "| #{[*setting.values_at('setting', 'kills', 'kills_per_10_minutes', 'requests', 'failed', 'p50_ms', 'p99_ms'),
          most].join(' | ')} |"
  end

  def picture(found)
    recordings = found.fetch("settings").map { |setting| File.join(FOLDER, setting.fetch("recording")) }
    FileUtils.mkdir_p(Comparison::PICTURES)
    system(RBLOAT, "plot", *recordings, "-o", "#{Comparison::PICTURES}/limited.svg", exception: true)
    "experiments/limited.svg"
  end
end
