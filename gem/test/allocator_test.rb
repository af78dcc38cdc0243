# frozen_string_literal: true

require_relative "test_helper"

# The name of the allocator, and its statistics.
class AllocatorTest < Minitest::Test
  def test_glibc_is_known
    assert_equal "glibc", Rbloat.allocator
  end

  def test_jemalloc_is_known_and_left_alone
    answer = run_ruby(<<~RUBY, env: { "LD_PRELOAD" => jemalloc })
      [Rbloat.allocator, Rbloat.trim, Rbloat::Malloc.counts, Rbloat::AutoTrim.start, Rbloat::AutoTrim.start,
       Rbloat::AutoTrim.running?]
    RUBY
    assert_equal ["jemalloc", 0, nil, false, false, false], answer
    assert_equal 1, errors.scan("AutoTrim is off").size
  end

  def test_exact_in_use_counts_what_lives_and_not_what_is_cached
    in_use = run_ruby(<<~RUBY)
      GC.disable
      before = Rbloat::Malloc.exact_in_use
      kept = Array.new(1_000) { "x" * 5_000 }
      between = Rbloat::Malloc.exact_in_use
      kept.each(&:clear)
      kept.each { |string| string.replace("") }
      [between - before, kept.size]
    RUBY
    assert_includes 5_000_000..5_200_000, in_use.first
  end

  def test_trim_returns_what_malloc_holds
    returned, before, after = run_ruby(<<~RUBY)
      burst
      before = Rbloat.rss_bytes
      [Rbloat.trim, before, Rbloat.rss_bytes]
    RUBY
    assert_operator returned, :>, 50_000_000
    assert_operator after, :<=, before - (returned / 2)
  end
end
