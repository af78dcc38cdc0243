# frozen_string_literal: true

require_relative "test_helper"

# The shop of scenarios/rails, with the real Rails, Puma and PostgreSQL, and with the gem.
class RailsTest < Minitest::Test
  SHOP = File.expand_path("../../scenarios/rails", __dir__)

  def setup
    skip "scenarios/rails is missing" unless File.directory?(SHOP)
    %w[rails active_record puma pg].each { |library| needs library }
    require "#{SHOP}/lib/database"
    require "#{SHOP}/lib/server"
  end

  def with_shop(**options)
    server = Server.new(Database.start, **options)
    yield server
  ensure
    server&.stop
  end

  def body(server, path)
    response = server.get(path)
    assert_equal "200", response.code, path
    response.body
  end

  def assert_serves(server)
    assert_equal 25, body(server, "/orders?page=3").scan("<tr>").size
    assert_includes body(server, "/orders/77"), "<h1>INV-00000077</h1>"
    assert_equal 25, JSON.parse(body(server, "/orders.json?page=3")).size
    # The header, and the orders of January: 40,001 * (31 / 365.0)**(1 / 0.6).
    assert_equal 657, body(server, "/exports/1.csv").lines.size
  end

  def test_one_process_without_the_gem
    with_shop do |server|
      assert_serves server
      assert Setting.in_force?("default", server.pid)
    end
  end

  def test_two_workers_with_the_gem
    with_shop(setting: "gem", workers: 2) do |server|
      assert_serves server
      assert_equal 2, server.serving.size
      server.serving.each { |pid| wait_until { Setting.in_force?("gem", pid) } }
    end
  end
end
