# frozen_string_literal: true

require_relative "test_helper"
require_relative "../../testkit/ruby/extension"
require_relative "../../testkit/ruby/servers"

# Probes: the memory that a block allocates, and how much of it the GC knows about.
class ProbeTest < Minitest::Test
  HOARD = File.join(__dir__, "native/hoard.c")
  ANSWER = "[probe.malloc_bytes, probe.seen, probe.freed, probe.verdict, probe.objects]"

  def probe(code, setup: "", env: {})
    run_ruby("#{setup}\nprobe = nil\n2.times { probe = Rbloat.probe { #{code} } }\n#{ANSWER}", env: env)
  end

  def seen(code, env, setup)
    probe(code, setup: setup, env: env)[1]
  end

  def test_strings_are_seen_and_can_be_freed
    bytes, seen, freed, verdict, objects = probe("Array.new(1_000) { 'x'.freeze * 5_000 }")
    assert_in_delta 5_000_000, bytes, 200_000
    assert_operator seen, :>, 0.95
    assert_operator freed, :>, 0.95
    assert_includes 1_000..1_100, objects
    assert_match(/\AThe block kept 4\.\d MiB of malloc's memory\. The GC knows about \d+ % of it, .*%\.\z/, verdict)
  end

  def test_what_is_retained_cannot_be_freed
    bytes, _seen, freed, = probe("$kept = [*$kept, *Array.new(1_000) { 'x' * 5_000 }]")
    assert_operator bytes, :>, 4_900_000
    assert_operator freed, :<, 0.05
  end

  # A GC at any time frees nothing of it, so NativePressure is no remedy.
  def test_a_leak_of_an_extension_is_no_case_for_native_pressure
    setup = "require '#{Extension.compile(HOARD)}'; $kept = []"
    _, seen, freed, verdict, = probe("$kept.concat(Array.new(100) { Hoard.new(50_000) })", setup: setup)
    assert_operator seen, :<, 0.05
    assert_operator freed, :<, 0.05
    assert_match(/could free \d %\. What the GC could not free is retained by objects, or leaked: /, verdict)
    verdict = probe("$kept.concat(Array.new(100) { Hoard.new(50_000) }.first(50))", setup: setup)[3]
    assert_match(/ use Rbloat::NativePressure\. What the GC could not free is .* at each call\.\z/, verdict)
  end

  def test_an_extension_that_reports_nothing_is_not_seen
    bytes, seen, freed, verdict, = probe("Array.new(100) { Hoard.new(50_000) }",
                                         setup: "require '#{Extension.compile(HOARD)}'")
    assert_in_delta 5_000_000, bytes, 200_000
    assert_operator seen, :<, 0.05
    assert_operator freed, :>, 0.95
    assert_match(/The GC knows about \d % of it.* use Rbloat::NativePressure\.\z/, verdict)
  end

  def test_a_block_that_keeps_nothing
    verdict = probe("1 + 1")[3]
    assert_equal "The block kept almost no memory of malloc.", verdict
  end

  def test_pg_reports_mysql2_and_an_extension_over_libpq_do_not
    %w[pg mysql2].each { |name| need(name) }
    sql = "SELECT repeat('x', 1000) FROM generate_series(1, 100)"
    pg = seen("connection.exec(#{sql.inspect})", Servers.postgres, "require 'pg'; connection = PG.connect")
    libpq = seen("Unaccounted.query(#{sql.inspect})", Servers.postgres,
                 "require '#{Extension.compile(*Extension::LIBPQ_UNACCOUNTED)}'")
    mysql2 = seen("client.query('SELECT repeat(\"x\", 100000)')", Servers.mariadb,
                  "require 'mysql2'; client = Mysql2::Client.new(socket: ENV['MYSQL_UNIX_PORT'])")
    assert_operator pg, :>, 0.75
    assert_operator libpq, :<, 0.1
    assert_operator mysql2, :<, 0.1
  end

  def test_errors_leave_the_gc_as_it_was
    [false, true].each do |disabled|
      disabled ? GC.disable : GC.enable
      assert_raises(RuntimeError) { Rbloat.probe { raise "no" } }
      assert_equal disabled, GC.disable
    end
    assert_raises(ArgumentError) { Rbloat.probe }
  ensure
    GC.enable
  end

  def test_jemalloc_is_refused
    answer = run_ruby("begin; Rbloat.probe { 1 }; rescue Rbloat::UnsupportedError => e; e.message; end",
                      env: { "LD_PRELOAD" => jemalloc })
    assert_equal "a probe needs glibc's malloc, but this process uses the malloc of jemalloc", answer
  end
end
