# frozen_string_literal: true

# Nodes that were made for a document and never added to it. Only the end of the document frees them.
# (sparklemotion/nokogiri#1703)

# Its library is a gem, and tests start scenarios without RubyGems.
require "rubygems"
require "nokogiri"
require_relative "../lib/scenario"

# A document that lives as long as the process.
module Feed
  DOCUMENT = Nokogiri::HTML::Document.new
end

Scenario.run do |scale|
  nodes = (100_000 * scale).ceil
  nodes.times do |index|
    node = Nokogiri::XML::Node.new("item", Feed::DOCUMENT)
    node.content = "text #{index} #{"x" * 300}"
    node.unlink
  end
  { nodes: nodes }
end
