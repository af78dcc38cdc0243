# frozen_string_literal: true

# JSON parsers, one for each request, where one would be enough.

require "rubygems"
require "oj"
require_relative "../lib/owners"

TOTAL = 2_000

Owners.run do |scale|
  Owners.keep(TOTAL * scale) do
    parser = Oj::Parser.new(:usual)
    parser.parse('{"orders":[{"id":1,"name":"x"},{"id":2,"name":"y"}]}')
    parser
  end
end
