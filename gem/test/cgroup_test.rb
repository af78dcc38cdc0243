# frozen_string_literal: true

require "fileutils"
require_relative "test_helper"

# Memory limits, read from copies of the kernel's files.
class CgroupTest < Minitest::Test
  def find(files)
    Dir.mktmpdir do |root|
      files.each do |path, text|
        FileUtils.mkdir_p(File.dirname(File.join(root, path)))
        File.write(File.join(root, path), text)
      end
      group = Rbloat::Cgroup.find(root: root)
      group && [group.limit, group.usage.delete_prefix(root), group.cache_word]
    end
  end

  def test_the_second_version
    assert_equal [4096, "/sys/fs/cgroup/a/b/memory.current", "inactive_file"],
                 find("proc/self/cgroup" => "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max" => "4096\n")
  end

  def test_the_tightest_limit_above_counts
    assert_equal [4096, "/sys/fs/cgroup/a/memory.current", "inactive_file"],
                 find("proc/self/cgroup" => "0::/a/b\n", "sys/fs/cgroup/a/memory.max" => "4096\n",
                      "sys/fs/cgroup/a/b/memory.max" => "8192\n")
  end

  def test_a_container_of_the_first_version_that_sees_its_own_group_as_the_root
    assert_equal [4096, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "total_inactive_file"],
                 find("proc/self/cgroup" => "3:cpu:/x\n2:memory,hugetlb:/docker/1\n0::/\n",
                      "sys/fs/cgroup/memory/memory.limit_in_bytes" => "4096\n")
  end

  def test_no_limit
    assert_nil find("proc/self/cgroup" => "0::/a\n", "sys/fs/cgroup/a/memory.max" => "max\n")
    assert_nil find("proc/self/cgroup" => "2:memory:/\n",
                    "sys/fs/cgroup/memory/memory.limit_in_bytes" => "9223372036854771712\n")
    assert_nil find({})
  end
end
