# frozen_string_literal: true

require "json"
require "open3"
require "rbconfig"
require_relative "../testkit/ruby/servers"

# The experiment of 2018 with results of PostgreSQL, and the same with MariaDB: memory that the GC does not know of.
class Results < Comparisons
  PROGRAM = "gem/bench/native.rb"

  # For each library its description, and the figures of the prototypes and the article in millions of bytes.
  LIBRARIES = {
    "libpq" => ["libpq, with a minimal extension that reports nothing to Ruby", "1050", "about 1000, with the pg of 2018"],
    "pg" => ["pg, which reports the size to Ruby since 1.1", "99", ""],
    "mysql2" => ["mysql2, `client.query`", "1130", ""],
    "mysql2-prepared" => ["mysql2, prepared statements", "184", ""]
  }.freeze

  def self.needs
    %w[ruby gcc libc6-dev ruby-dev rake-compiler ruby-pg postgresql ruby-mysql2 mariadb-server-core]
  end

  def initialize(runs:, **)
    super(runs, LIBRARIES.keys.to_h { |library| [library, comparison(library)] })
  end

  def run
    super
    @comparisons.each { |library, comparison| File.write("#{comparison.folder}/probe.json", probe(library)) }
  end

  def done?
    @comparisons.each_value.all? { |comparison| File.exist?("#{comparison.folder}/probe.json") }
  end

  def section
    <<~SECTION
      ## Memory that the GC does not know of

      A program reads 10,000 results of 100,000 bytes from a real PostgreSQL or MariaDB, clears none of them, and keeps
      ten. It also retains 400,000 strings. `scripts/experiments results` starts the servers. `Rbloat.probe` measured the
      first two figures, for one result: the bytes that Ruby knows of, and the bytes that malloc allocated.

          #{@comparisons.fetch('libpq').command}

      | library | known to Ruby, bytes | allocated, bytes | setting | RSS when done, MiB | prototype, 10⁶ bytes | article, 10⁶ bytes | wall, s |
      |---|---|---|---|---|---|---|---|
      #{@comparisons.flat_map { |library, comparison| rows(library, comparison) }.join("\n")}

      #{@comparisons.map { |library, comparison| "- #{library}: #{comparison.summary}" }.join("\n")}
    SECTION
  end

  private

  def comparison(library)
    variables = library.start_with?("mysql2") ? -> { Servers.mariadb } : -> { Servers.postgres }
    own = ["NativePressure:RBLOAT_NATIVE_PRESSURE=1", "NativePressure + AutoTrim:RBLOAT_NATIVE_PRESSURE=1",
           "NativePressure + AutoTrim:RBLOAT_AUTO_TRIM=1"]
    options = ["--with", "default", *own.flat_map { |variable| ["--set", variable] }, "--settle", "5s"]
    Comparison.new(library, ["ruby", PROGRAM, library, "nothing"], options: options, environment: variables)
  end

  def probe(library)
    words = [RbConfig.ruby, "-W0", PROGRAM, library, "probe"]
    output, status = Open3.capture2(@comparisons.fetch(library).environment, *words, chdir: ROOT)
    status.success? ? output : abort("experiments: #{words.join(' ')} failed")
  end

  def rows(library, comparison)
    label, prototype, article = LIBRARIES.fetch(library)
    probed = JSON.parse(File.read("#{comparison.folder}/probe.json"))
    comparison.medians.each_with_index.map do |median, place|
      first = place.zero? ? [label, probed["told"], probed["malloc"]] : ["", "", ""]
      cells = [*first, median["setting"], comparison.cell(median, "rss_end_bytes", Comparison::MIB),
               *(place.zero? ? [prototype, article] : ["", ""]), comparison.cell(median, "wall_ms", 1e3, 2)]
      "| #{cells.join(' | ')} |"
    end
  end
end
