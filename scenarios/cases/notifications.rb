# frozen_string_literal: true

# Each request subscribes to an event of ActiveSupport and never unsubscribes (aserafin/grape_logging#7, lipanski/sql-spy#1). The
# block keeps the request's object.

# Its library is a gem, and tests start scenarios without RubyGems.
require "rubygems"
require "active_support"
require "active_support/notifications"
require_relative "../lib/scenario"

# Has the rows of one request.
class Dashboard
  def initialize(number)
    @rows = Array.new(100) { |row| "row #{row} of request #{number}" }
  end

  def show
    ActiveSupport::Notifications.subscribe("render.dashboard") { |*| @seen = @rows.size }
  end
end

Scenario.run do |scale|
  requests = (5_000 * scale).ceil
  requests.times { |number| Dashboard.new(number).show }
  { requests: requests, line: Dashboard.instance_method(:show).source_location.last + 1 }
end
