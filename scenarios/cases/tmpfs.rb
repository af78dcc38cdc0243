# frozen_string_literal: true

# The memory of a control group is more than its processes' (moby/moby#40727): deleted files in /dev/shm that the process has
# open, and page cache. The request "close" closes the files.

require "tempfile"
require_relative "../lib/scenario"

MIB = 1 << 20
FILES = 3
BYTES = 30 * MIB

def upload
  file = Tempfile.new("upload", "/dev/shm")
  file.write("u" * BYTES)
  file.flush
  file.unlink
  file
end

close = lambda do
  UPLOADS.each(&:close)
  {}
end

Scenario.run(commands: { "close" => close }) do |_|
  Object.const_set(:UPLOADS, Array.new(FILES) { upload })
  cached = Object.const_set(:CACHED, Tempfile.new("cached", "/var/tmp"))
  cached.write("c" * (20 * MIB))
  cached.unlink
  { files: FILES, file_bytes: BYTES }
end
