# frozen_string_literal: true

# A context for each connection, where one for all would be enough. Ruby counts only their slots.

require "openssl"
require_relative "../lib/owners"

TOTAL = 3_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale) { OpenSSL::SSL::SSLContext.new }
end
