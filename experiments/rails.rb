# frozen_string_literal: true

require_relative "../scenarios/rails/lib/load"

# A Rails application on Puma and PostgreSQL under load, with one process and with two, under each allocator and setting.
class Rails < Comparisons
  SHAPES = { "rails-1x5" => ["0", "one process with 5 threads"], "rails-2x5" => ["2", "two workers with 5 threads each"] }.freeze
  BIND = "127.0.0.1:9292"
  SETTINGS = "default,arena2,jemalloc,tcmalloc,mimalloc,trim,gem"
  SECONDS = 15
  LOAD = Load.command("http://#{BIND}", seconds: SECONDS).join(" ").freeze

  def self.needs
    %w[ruby-railties ruby-activerecord puma ruby-pg postgresql wrk gcc libc6-dev ruby-dev rake-compiler libjemalloc2
       libtcmalloc-minimal4 libmimalloc2.0]
  end

  def initialize(runs:, **)
    comparisons = SHAPES.to_h do |name, (workers, _)|
      environment = { "WORKERS" => workers, "THREADS" => "5", "BIND" => "tcp://#{BIND}" }
      [name, Comparison.new(name, %w[puma -C scenarios/rails/config/puma.rb], before: ["scenarios/rails/with_database"],
                                                                              options: ["--with", SETTINGS, "--load", LOAD],
                                                                              environment: environment)]
    end
    super(runs, comparisons)
  end

  def section
    [<<~HEAD, *@comparisons.map { |name, comparison| part(SHAPES.fetch(name).last, comparison) }].join("\n")
      ## A Rails application

      The application is a shop on Debian's Rails and Puma, with a real PostgreSQL and 40,000 orders. wrk puts load on it
      for #{SECONDS} s in each run. Eight visitors request lists, details, and the list as JSON. An office exports one month of
      orders after the other, as CSV that the shop builds in memory. RSS is the sum of all processes, so shared pages
      count several times. There are no published figures to compare with.
    HEAD
  end

  private

  def part(shape, comparison)
    <<~PART
      ### #{shape[0].upcase}#{shape[1..]}

          #{comparison.command}

      | setting | peak, MiB | end of load, MiB | 15 s later, MiB | requests/s | failed | median latency, ms | 99th percentile, ms |
      |---|---|---|---|---|---|---|---|
      #{comparison.medians.map { |median| row(comparison, median) }.join("\n")}

      #{comparison.summary}

      ![RSS of all runs](#{comparison.picture})
    PART
  end

  def row(comparison, median)
    mib = Comparison::MIB
    cells = [
      median["setting"], comparison.cell(median, "rss_peak_bytes", mib), comparison.cell(median, "rss_end_bytes", mib),
      comparison.cell(median, "rss_settled_bytes", mib), comparison.cell(median, "requests_per_second", 1),
      median["failures"], comparison.cell(median, "p50_ms", 1, 1), comparison.cell(median, "p99_ms", 1, 1)
    ]
    "| #{cells.join(' | ')} |"
  end
end
