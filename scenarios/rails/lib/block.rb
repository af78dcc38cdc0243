# frozen_string_literal: true

require "net/http"

# The same requests on the shop each time: those of visitors, as in load.lua, and meanwhile the exports of the office.
class Block
  VISITORS = 8
  ORDERS = 40_000
  PAGES = 1_600
  MONTHS = [10, 11, 12].freeze
  TIMEOUT = 60

  Result = Struct.new(:seconds, :visit_ms, :requests, :failed, keyword_init: true)

  def initialize(url, visits: 240)
    @uri = URI(url)
    random = Random.new(2025)
    @visits = Array.new(visits) { visit(random) }
  end

  # Makes all requests. The visitors share their list, and the office begins an export after each third of it.
  # @return [Result]
  def run
    @left = @visits.each_with_index.to_a
    @lock = Mutex.new
    started = clock
    visitors = Array.new(VISITORS) { Thread.new { connected { |http| visit_all(http) } } }
    exports = connected { |http| export_all(http) }
    times = [*visitors.flat_map(&:value), *exports]
    visits = times.first(@visits.size).map { |milliseconds, _ok| milliseconds }
    Result.new(seconds: clock - started, visit_ms: visits, requests: times.size, failed: times.count { |_, ok| !ok })
  end

  private

  def clock
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def visit(random)
    case random.rand(100)
    when 0...45 then "/orders?page=#{random.rand(1..PAGES)}"
    when 45...85 then "/orders/#{random.rand(1..ORDERS)}"
    else "/orders.json?page=#{random.rand(1..PAGES)}"
    end
  end

  def connected(&block)
    Net::HTTP.start(@uri.host, @uri.port, read_timeout: TIMEOUT, &block)
  end

  def visit_all(http)
    times = []
    while (path, = @lock.synchronize { @left.shift })
      times << get(http, path)
    end
    times
  end

  def export_all(http)
    MONTHS.each_with_index.map do |month, index|
      sleep 0.02 until @visits.size - @left.size >= index * @visits.size / MONTHS.size
      get(http, "/exports/#{month}.csv")
    end
  end

  # Returns the milliseconds, and whether the request succeeded.
  def get(http, path)
    started = clock
    response = http.get(path)
    [1000 * (clock - started), response.is_a?(Net::HTTPSuccess)]
  end
end
