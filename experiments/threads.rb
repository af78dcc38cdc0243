# frozen_string_literal: true

require_relative "../testkit/ruby/setting"

# Threads that allocate strings, under each allocator and setting, and with trims inside and outside of the GC.
class Threads < Comparisons
  PROGRAMS = {
    "churn" => "20 threads each make 300 × 1,000 strings of up to 4 KiB, and keep none.",
    "burst" => "20 threads each build 12 arrays of 5,000 strings of up to 8 KiB, and drop them. Their peaks overlap.",
    "pin" => "As burst, but each thread keeps one string in 200, in a ring of 500."
  }.freeze

  # RSS of the prototypes at once and 15 s later, in millions of bytes (Debian 12, Ruby 3.1.2, two cores, medians of 3
  # runs).
  PROTOTYPES = {
    "churn" => { "default" => [211], "arena2" => [41], "jemalloc" => [147], "tcmalloc" => [87],
                 "mimalloc" => [296], "trim after mark" => [36], "trim after sweep" => [33] },
    "burst" => { "default" => [751, 776], "arena2" => [747, 731], "jemalloc" => [918, 83],
                 "jemalloc background" => [nil, 50], "tcmalloc" => [864, 810], "mimalloc" => [987, 846],
                 "trim after mark" => [261], "trim after sweep" => [24, "25–31"] },
    "pin" => { "default" => ["1030–1186", 1078], "arena2" => ["874–890", 870],
               "jemalloc" => ["954–1010", 179], "jemalloc background" => [nil, 139], "tcmalloc" => ["921–965", 956],
               "mimalloc" => ["970–1197", 816], "trim after mark" => ["315–551"],
               "trim after sweep" => ["106–108", "78–86"] }
  }.freeze

  def self.needs
    %w[ruby gcc libc6-dev ruby-dev rake-compiler libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0]
  end

  def initialize(runs:, **)
    jemalloc = Setting.library("jemalloc")
    own = ["jemalloc background:LD_PRELOAD=#{jemalloc}",
           "jemalloc background:MALLOC_CONF=background_thread:true", "trim after mark:TRIM_IN_GC=mark",
           "trim after sweep:TRIM_IN_GC=sweep"]
    comparisons = PROGRAMS.keys.to_h do |program|
      options = own.flat_map { |variable| ["--set", variable] }
      [program, Comparison.new(program, %W[ruby experiments/programs/threads.rb #{program}], options: options)]
    end
    super(runs, comparisons)
  end

  def section
    [<<~HEAD, *@comparisons.map { |program, comparison| part(program, comparison) }].join("\n")
      ## Threads that allocate strings

      After the work, each thread makes a few strings twice a second, as a thread of a quiet server does. So allocators that
      return memory only when they are called get the chance.

      - *Done* is RSS when the process has been idle for a second. *15 s later* is RSS after the time to settle.
      - `trim` is `rbloat trim` at the end of the work, and `gem` is `Rbloat::AutoTrim`.
      - *Trim after mark* (as in the article's patch) and *trim after sweep* call malloc_trim inside each major GC.
      - The prototypes measured *at once* right after the last GC.
    HEAD
  end

  private

  def part(program, comparison)
    rows = comparison.medians.map { |median| row(comparison, median, PROTOTYPES.fetch(program)) }
    <<~PART
      ### #{program}

      #{PROGRAMS.fetch(program)}

          #{comparison.command}

      | setting | peak, MiB | done, MiB | 15 s later, MiB | prototype, at once | prototype, 15 s later | wall, s | CPU, s | page faults, thousands |
      |---|---|---|---|---|---|---|---|---|
      #{rows.join("\n")}

      #{comparison.summary}

      ![RSS of all runs](#{comparison.picture})
    PART
  end

  def row(comparison, median, prototypes)
    at_once, later = prototypes[median["setting"]]
    mib = Comparison::MIB
    cells = [
      median["setting"], comparison.cell(median, "rss_peak_bytes", mib), comparison.cell(median, "rss_end_bytes", mib),
      comparison.cell(median, "rss_settled_bytes", mib), at_once, later, comparison.cell(median, "wall_ms", 1e3, 2),
      format("%.2f", (median["user_ms"]["median"] + median["system_ms"]["median"]) / 1e3),
      comparison.cell(median, "minor_faults", 1e3)
    ]
    "| #{cells.join(' | ')} |"
  end
end
