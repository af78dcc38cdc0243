# frozen_string_literal: true

# An ordinary small program after its warm-up. It has loaded some libraries, rendered some pages, and has a small cache
# with a limit. There is nothing to find here.

require "erb"
require "set"
require "time"
require_relative "lib/scenario"

REQUESTS = 20_000
CACHE_ENTRIES = 500
CACHE = {}
VISITORS = Set.new
PAGE = ERB.new(<<~HTML)
  <h1>Order <%= order[:id] %></h1>
  <p>placed <%= order[:placed] %></p>
  <ul><% order[:items].each do |item| %><li><%= ERB::Util.html_escape(item) %></li><% end %></ul>
HTML

def handle(request)
  items = Array.new(request % 10) { |item| "item <#{item}>" }
  order = { id: request, placed: Time.at(request).utc.iso8601, items: items }
  VISITORS << request % 100
  CACHE[request] = PAGE.result_with_hash(order: JSON.parse(JSON.generate(order), symbolize_names: true))
  CACHE.shift if CACHE.size > CACHE_ENTRIES
end

Scenario.run(expect: "healthy") do |scale|
  requests = (REQUESTS * scale).round
  requests.times { |request| handle(request) }
  { requests: requests, cached: CACHE.size, visitors: VISITORS.size }
end
