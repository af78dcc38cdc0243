# frozen_string_literal: true

# Unfinished digests. Ruby counts only their slots. Each points to the tables of its algorithm, which belong to no
# digest.

require "openssl"
require_relative "../lib/owners"

TOTAL = 100_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { OpenSSL::Digest.new("SHA256").update("order") }
end
