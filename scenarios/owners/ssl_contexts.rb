# frozen_string_literal: true

# A context of its own for each connection, where one would do. Ruby counts their slots only.

require "openssl"
require_relative "../lib/owners"

TOTAL = 3_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { OpenSSL::SSL::SSLContext.new }
end
