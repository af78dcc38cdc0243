# frozen_string_literal: true

# Digests in the midst of their work. Ruby counts their slots only. Each points at the tables of its algorithm, which
# belong to none of them.

require "openssl"
require_relative "../lib/owners"

TOTAL = 100_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { OpenSSL::Digest.new("SHA256").update("order") }
end
