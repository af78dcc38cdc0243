# frozen_string_literal: true

# A large file, such as an index or a model, that is mapped and read. Its pages are in the page cache. They count in
# RSS, but the kernel can reclaim all of them.

require "fiddle"
require "tempfile"
require_relative "lib/scenario"

BYTES = 400 * 1024 * 1024
PAGE = 4_096
PROT_READ = 1
MAP_PRIVATE = 2

# Returns the address of a mapping that exists until the process ends, so the file can be closed and deleted.
def map_for_reading(file, bytes)
  mmap = Fiddle::Function.new(
    Fiddle::Handle::DEFAULT["mmap"],
    [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_INT, Fiddle::TYPE_INT, Fiddle::TYPE_INT, Fiddle::TYPE_LONG],
    Fiddle::TYPE_VOIDP
  )
  address = mmap.call(nil, bytes, PROT_READ, MAP_PRIVATE, file.fileno, 0)
  raise SystemCallError.new("mmap", Fiddle.last_error) if address.to_i == -1

  address
end

Scenario.run(expect: "file.shared") do |scale|
  bytes = (BYTES * scale).round
  # Not in /tmp, which may be memory.
  Tempfile.create("mapped_file", "/var/tmp") do |file|
    # A hole takes no disk space, and reading it fills the page cache like other data.
    file.truncate(bytes)
    mapping = map_for_reading(file, bytes)
    0.step(bytes - 1, PAGE) { |offset| mapping[offset] }
  end
  { mapped_bytes: bytes }
end
