# frozen_string_literal: true

# A server with 5 threads and 4 endpoints. What each request keeps makes the process grow.
#   usage: server.rb [REQUESTS]

require "csv"
require_relative "truth"

THREADS = 5
KEPT = []

class OrdersController
  def export
    rows = Array.new(9000) { |i| { id: i, name: "customer #{i}", total: i * 1.25, note: "x" * 60 } }
    KEPT << rows << CSV.generate { |csv| rows.each { |row| csv << row.values } }
  end
end

class UsersController
  def index
    KEPT << JSON.generate(Array.new(6000) { |i| { "id" => i, "mail" => "user#{i}@example.org" } })
  end
end

class ReportsController
  def show
    KEPT << Array.new(12_000) { |i| format("%08d", i) }.sort
  end
end

class HealthController
  def show
    sleep 0.01
  end
end

ENDPOINTS = [
  ["OrdersController#export", 0.3, -> { OrdersController.new.export }],
  ["UsersController#index", 0.2, -> { UsersController.new.index }],
  ["ReportsController#show", 0.2, -> { ReportsController.new.show }],
  ["HealthController#show", 0.3, -> { HealthController.new.show }],
].freeze

random = Random.new(7)
requests = Queue.new
Integer(ARGV.fetch(0, "400")).times do
  place = random.rand
  requests << ENDPOINTS.find { |_, share, _| (place -= share).negative? }
end
requests.close

Truth.run do
  workers = Array.new(THREADS) do
    Thread.new do
      while (name, _, handler = requests.pop)
        Truth.of(name, &handler)
        sleep 0.003
      end
    end
  end
  workers.each(&:join)
end
