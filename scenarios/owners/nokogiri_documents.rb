# frozen_string_literal: true

# Parsed documents: one Ruby object each, with a tree of many small chunks. Each chunk points to its parent, its
# neighbours and the document.

require "rubygems"
require "nokogiri"
require_relative "../lib/owners"

TOTAL = 500
ORDERS = 200

Owners.run do |scale|
  orders = (1..ORDERS).map { |id| %(<order id="#{id}"><name>Name #{id}</name><sum>#{id * 3}</sum></order>) }
  xml = "<orders>#{orders.join}</orders>"
  Owners.keep(TOTAL * scale) { Nokogiri::XML(xml) }
end
