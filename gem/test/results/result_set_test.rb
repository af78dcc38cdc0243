# frozen_string_literal: true

require "objspace"
require_relative "../test_helper"
require_relative "../../../testkit/ruby/extension"
require_relative "postgres"

# Results of PostgreSQL that the gem takes over, or copies.
class ResultSetTest < Minitest::Test
  include Postgres

  PRELUDE = "require 'json'; require 'rbloat/results/pg'; "

  def test_it_has_what_the_result_has
    result = @connection.exec(ROWS)
    values = result.values
    hashes = result.to_a
    fields = result.fields
    types = Array.new(5) { |column| result.ftype(column) }
    set = result.result_set
    assert_predicate result, :cleared?
    assert_equal values, set.values
    assert_equal hashes, set.map(&:to_h)
    assert_equal fields, set.columns
    assert_equal types, Array.new(5) { |column| set.column_type(column) }
    assert_equal [100, 100, 5], [set.size, set.count, set.column_count]
    assert_equal values.transpose[1], set.column_values("name")
    assert_equal [true, false, false], [set.null?(2, 1), set.null?(1, 1), set.null?(2, :empty)]
    assert_equal [Encoding::UTF_8], set.column_values(1).compact.map(&:encoding).uniq
  end

  def test_values_are_new_objects_and_the_set_is_frozen
    set = result_set
    set.get(0, "name") << " changed"
    assert_equal "näme 1", set.get(0, "name")
    assert_predicate set, :frozen?
    assert_raises(TypeError) { set.dup }
  end

  def test_rows_answer_by_name_and_number
    row = result_set[1]
    assert_equal ["2", "näme 2", "t", "t", nil, nil],
                 [row[0], row["name"], row[:even], row[-1], row[5], row["nobody"]]
    assert_equal %w[id name empty] + ["a b", "even"], row.keys
    assert_equal ["2", "näme 2", "", "3.0", "t"], row.values
    assert_equal "none", row.fetch("nobody", "none")
    assert_equal "nobody!", row.fetch("nobody") { |name| "#{name}!" }
    assert_raises(KeyError) { row.fetch("nobody") }
    assert_raises(IndexError) { row.fetch(5) }
    assert_equal result_set[1], row
    refute_equal result_set[2], row
    assert_equal "#<Rbloat::Row id: \"2\", name: \"näme 2\", empty: \"\", a b: \"3.0\", even: \"t\">", row.inspect
    assert_equal({ id: "2", even: "t" }, row.deconstruct_keys(%i[id even]))
  end

  def test_what_is_outside
    set = result_set
    assert_equal ["100", nil, nil], [set[-1]["id"], set[100], set[-101]]
    assert_raises(IndexError) { set.get(100, 0) }
    assert_raises(IndexError) { set.get(-1, 0) }
    assert_raises(IndexError) { set.get(0, 5) }
    assert_raises(IndexError) { set.get(0, "nobody") }
    assert_raises(TypeError) { set.get(nil, 0) }
    assert_raises(TypeError) { set.get(0, nil) }
    assert_raises(RangeError) { set.get(2**70, 0) }
  end

  def test_enumerable
    set = result_set
    assert_equal 5050, set.sum { |row| row["id"].to_i }
    assert_equal "7", set.lazy.map { |row| row["id"] }.find { |id| id == "7" }
    assert_equal [100, 100], [set.each.size, set.each_row.size]
    assert_same set, set.each_row(&:itself)
    assert_equal set.values, set.each_row.to_a
  end

  def test_results_without_rows_or_columns
    set = result_set("SELECT 1 AS a WHERE false")
    assert_equal [0, [], %w[a]], [set.size, set.values, set.columns]
    set = result_set("SELECT FROM generate_series(1, 2)")
    assert_equal [2, [[], []]], [set.size, set.values]
    set = @connection.exec("CREATE TEMP TABLE nothing()").result_set
    assert_equal [0, 0], [set.size, set.column_count]
  end

  def test_columns_of_one_name
    set = result_set("SELECT 1 AS a, 2 AS a")
    assert_equal [%w[1 2], "1", %w[a a]], [set[0].values, set[0]["a"], set.columns]
  end

  def test_cleared_by_hand
    set = result_set
    row = set[0]
    2.times { set.clear }
    assert_predicate set, :cleared?
    assert_raises(ArgumentError) { row["id"] }
    assert_raises(ArgumentError) { set.size }
    assert_equal "#<Rbloat::PGResultSet cleared>", set.inspect
  end

  def test_many_columns
    row = Array.new(100, &:to_s)
    set = result_set("SELECT #{row.join(', ')} FROM generate_series(1, 2)")
    assert_equal [row, row], set.values
    assert_equal [row, row], set.each_row.to_a
  end

  def test_a_type_decoder_may_clear_the_set
    set = nil
    decoder = Class.new(PG::SimpleDecoder) do
      define_method(:decode) { |string, row, _column| row == 50 ? set.clear || string : string }
    end
    result = @connection.exec(ROWS)
    result.type_map = PG::TypeMapByColumn.new([decoder.new] * 5)
    set = result.result_set
    assert_raises(ArgumentError) { set.column_values("id") }
    assert_predicate set, :cleared?
  end

  def test_a_cleared_result_is_an_error
    result = @connection.exec(ROWS)
    result.clear
    assert_raises(PG::Error) { result.result_set }
  end

  def test_other_objects_than_results_are_refused
    assert_raises(TypeError) { Rbloat::PGResultSet.new(@connection) }
    messages = run_ruby(<<~RUBY)
      require "rbloat/results/pg"
      cells = Rbloat::Cells.new
      cells.send(:native_columns, ["a"], ["UTF-8"], [0], nil)
      require #{Extension.compile(File.join(__dir__, '../native/hoard.c')).dump}
      require #{Extension.compile(File.join(__dir__, '../native/impostor.c')).dump}
      objects = [Object.new, Thread.current, Hoard.new(1_000), Impostor.new]
      %i[native_take native_copy].product(objects).map do |method, object|
        cells.send(method, object, 1, [])
      rescue TypeError => error
        error.message
      end
    RUBY
    types = messages.map { |message| message[/type (\w+) \(expected PG::Result/, 1] }
    assert_equal ["Object", "Thread", "Hoard", nil] * 2, types
    assert_equal 2, messages.grep(/cannot read the PG::Result/).size
  end

  # Binary gems of pg contain a libpq with another name. Another extension may load Debian's libpq as well.
  def test_the_libpq_of_pg_is_used_whatever_else_is_loaded
    Dir.mktmpdir do |folder|
      own = carry_libpq(folder)
      other = Extension.compile(File.join(__dir__, "../native/other_libpq.c"), "-Wl,-soname,libpq.so.5")
      mapped, values = run_ruby(<<~RUBY, env: Servers.postgres.merge("LD_LIBRARY_PATH" => folder), prelude: "")
        require "fiddle"
        require "json"
        Fiddle::Handle.new(#{other.dump}, Fiddle::Handle::RTLD_NOW)
        $LOAD_PATH.unshift(#{folder.dump})
        require "rbloat/results/pg"
        set = Rbloat::PGResultSet.new(PG.connect.exec("SELECT 'own' AS a"))
        maps = File.read("/proc/self/maps")
        [[#{own.dump}, #{other.dump}].map { |library| maps.include?(library) }, set.values]
      RUBY
      assert_equal [[true, true], [["own"]]], [mapped, values]
    end
  end

  # Copies the extension of pg and its libpq to the folder, and renames libpq in both. The new name has the same length.
  def carry_libpq(folder)
    extension = $LOADED_FEATURES.grep(/pg_ext\.so\z/).first
    libpq = File.read("/proc/self/maps")[%r{/\S*/libpq\.so\.5\S*}]
    skip "pg is not linked with libpq.so.5" unless libpq && File.binread(extension).include?("libpq.so.5\0")
    { extension => "pg_ext.so", libpq => "libqp.so.5" }.each do |from, to|
      File.binwrite(File.join(folder, to), File.binread(from).gsub("libpq.so.5\0", "libqp.so.5\0"))
    end
    File.join(folder, "libqp.so.5")
  end

  def test_in_a_ractor
    skip "pg works in a Ractor from 1.5 on" if Gem::Version.new(PG::VERSION) < Gem::Version.new("1.5")
    assert_equal [["1", nil]], run_ruby(<<~RUBY, env: Servers.postgres, prelude: PRELUDE)
      ractor = Ractor.new { Rbloat::PGResultSet.new(PG.connect.exec("SELECT 1, NULL")).values }
      ractor.respond_to?(:value) ? ractor.value : ractor.take
    RUBY
  end

  # Used if libpq is not found, as in a static Ruby.
  def test_the_way_over_strings_is_the_same
    @connection.type_map_for_results = PG::BasicTypeMapForResults.new(@connection)
    slow = Class.new(Rbloat::PGResultSet) do
      def native_take(*)
        false
      end
    end
    assert_equal result_set.values, slow.new(@connection.exec(ROWS)).values
  end

  # libpq clears such a result itself, so it cannot be taken over.
  def test_a_result_that_libpq_owns_is_copied
    result = @connection.exec(ROWS)
    values = result.values
    result.define_singleton_method(:autoclear?) { true }
    set = result.result_set
    assert_equal values, set.values
    assert_equal set.bytesize, set.shrink.bytesize
  end

  def test_shrink
    @connection.type_map_for_results = PG::BasicTypeMapForResults.new(@connection)
    set = result_set
    values = set.values
    large = set.bytesize
    2.times { assert_same set, set.shrink }
    assert_operator set.bytesize, :<, large / 2
    assert_equal [values, values[7]], [set.values, set.row_values(7)]
    set.clear
    assert_raises(ArgumentError) { set.shrink }
  end

  def test_a_type_decoder_may_shrink_the_set
    set = nil
    decoder = Class.new(PG::SimpleDecoder) do
      define_method(:decode) { |string, row, _column| string.tap { set.shrink if row == 50 } }
    end
    result = @connection.exec(ROWS)
    values = result.values
    result.type_map = PG::TypeMapByColumn.new([decoder.new] * 5)
    set = result.result_set
    assert_equal values, set.each_row.to_a
  end

  def test_the_set_outlives_the_result_and_the_connection
    values, read = run_ruby(<<~RUBY, env: Servers.postgres, prelude: PRELUDE)
      make = lambda do
        connection = PG.connect
        result = connection.exec(#{ROWS.dump})
        values = result.values
        tuple = result.tuple(0)
        set = Rbloat::PGResultSet.new(result)
        connection.close
        begin
          tuple["id"]
        rescue PG::Error
          [values, set]
        end
      end
      values, set = make.()
      5.times { GC.start }
      [values, set.values]
    RUBY
    assert_equal values, read
  end

  def test_clear_frees_the_memory_at_once
    skip "needs glibc's malloc" unless glibc?
    run_ruby(<<~RUBY, env: Servers.postgres, prelude: "#{PRELUDE}require 'rbloat'").each_slice(3) do |row|
      in_use = -> { Rbloat.const_get(:Malloc).exact_in_use }
      connection = PG.connect
      sql = "SELECT repeat('x', 1000) FROM generate_series(1, 1000)"
      connection.exec(sql).clear
      GC.start
      GC.disable
      [:itself, :shrink].flat_map do |way|
        before = in_use.()
        set = Rbloat::PGResultSet.new(connection.exec(sql)).public_send(way)
        size = set.bytesize
        held = in_use.() - before
        set.clear
        [size, held, in_use.() - before]
      end
    RUBY
      size, held, left = row
      assert_operator size, :>, 1_000_000
      # A shrunk set is a mapping of its own.
      assert(held.between?(size - 50_000, size + 50_000) || held < 50_000, row.inspect)
      assert_operator left, :<, 50_000
    end
  end

  def test_a_frozen_result_is_refused_and_lives
    result = @connection.exec("SELECT 1").freeze
    assert_raises(FrozenError) { result.result_set }
    assert_equal [["1"]], result.values
  end

  def test_random_tables
    random = Random.new(7)
    20.times do
      rows = Array.new(random.rand(0..50)) do
        Array.new(7) { random.rand(4).zero? ? nil : random.bytes(random.rand(0..300)).unpack1("H*") }
      end
      sql = rows.map { |row| "(#{row.map { |cell| cell ? "'#{cell}'" : 'NULL::text' }.join(',')})" }.join(",")
      sql = rows.empty? ? "SELECT 1,2,3,4,5,6,7 WHERE false" : "VALUES #{sql}"
      assert_equal rows, result_set(sql).values
    end
  end

  def test_two_objects_at_most_and_all_bytes_are_known
    sql = "SELECT #{Array.new(20) { |n| "repeat('x', 50) AS c#{n}" }.join(', ')} FROM generate_series(1, 1000)"
    [nil, PG::BasicTypeMapForResults.new(@connection)].each do |map|
      @connection.type_map_for_results = map || PG::TypeMapAllStrings.new
      result_set(sql)
      result = @connection.exec(sql)
      GC.start
      GC.disable
      set = nil
      seen = ObjectSpace.trace_object_allocations do
        set = result.result_set
        reachable(set).count { |object| ObjectSpace.allocation_generation(object) }
      end
      assert_operator seen, :<=, 2
      assert_operator ObjectSpace.memsize_of(set), :>=, 1_000_000
      # In libpq a cell takes 17 bytes more than its text. The ends of blocks are unused.
      assert_operator set.bytesize, :<=, (1_000 * 20 * 70) + 8_192
      assert_operator ObjectSpace.memsize_of(set.shrink), :>=, 1_000_000
      assert_operator set.bytesize, :<=, (1_000 * 20 * 54) + 8_192
    ensure
      GC.enable
    end
  end

  # libpq puts cells of less than 1,024 bytes into blocks of 2 KiB, and leaves the end of a block unused.
  def test_size_of_cells_of_which_a_block_has_few
    columns = Array.new(20) { |n| "repeat('x', 700) AS c#{n}" }.join(", ")
    set = result_set("SELECT #{columns} FROM generate_series(1, 1000)")
    cells = 1_000 * 20
    assert_operator set.bytesize, :>=, cells * (700 + 17 + 200)
    assert_operator set.bytesize, :<=, (cells * (700 + 17) * 2) + 8_192
    assert_operator set.shrink.bytesize, :<=, (cells * (700 + 4)) + 8_192
  end

  # The object, and the objects that it refers to, except for classes.
  def reachable(object)
    found = [object]
    ObjectSpace.reachable_objects_from(object).each { |child| found << child unless child.is_a?(Module) }
    found
  end

  def test_the_gc_is_told_and_frees
    collected, told = run_ruby(<<~RUBY, env: Servers.postgres)
      require "rbloat/results/pg"
      connection = PG.connect
      sql = "SELECT repeat('x', 1000) FROM generate_series(1, 1000)"
      GC.start
      before = GC.count
      GC.disable
      increase = GC.stat(:malloc_increase_bytes)
      Rbloat::PGResultSet.new(connection.exec(sql))
      told = GC.stat(:malloc_increase_bytes) - increase
      GC.enable
      200.times { Rbloat::PGResultSet.new(connection.exec(sql)) }
      [GC.count - before, told]
    RUBY
    assert_operator collected, :>, 3
    assert_operator told, :>, 900_000
  end

  # In another process, since mysql2 crashes after a compaction: it does not update its references to classes.
  def test_stress_and_compaction
    answer = run_ruby(<<~RUBY, env: Servers.postgres, prelude: 'require "json"; require "rbloat/results/pg/result"')
      connection = PG.connect
      connection.type_map_for_results = PG::BasicTypeMapForResults.new(connection)
      sql = #{"#{ROWS} LIMIT 5".dump}
      expected = connection.exec(sql).values
      GC.stress = true
      set = connection.exec(sql).result_set
      values = set.values
      connection.exec(sql).result_set.clear
      slow = Class.new(Rbloat::PGResultSet) { define_method(:native_take) { |*| false } }
      copied = slow.new(connection.exec(sql)).values
      shrunk = connection.exec(sql).result_set.shrink.values
      GC.stress = false
      double = RUBY_VERSION < "3.2" ? { double_heap: true } : { expand_heap: true }
      begin
        GC.verify_compaction_references(toward: :empty, **double) if GC.respond_to?(:verify_compaction_references)
        [values, copied, shrunk, set.values].map { |it| it == expected }
      rescue NotImplementedError
        "this platform does not compact"
      end
    RUBY
    skip answer if answer.is_a?(String)
    assert_equal [true] * 4, answer
  end
end
