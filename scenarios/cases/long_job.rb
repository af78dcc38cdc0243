# frozen_string_literal: true

# A job that never ends caches the results of its queries (rails/rails#31175). Only a local variable of its thread refers to them.
# The request "clear" empties the cache.

require_relative "../lib/scenario"

Result = Struct.new(:columns, :rows)

# A connection with a cache.
class Connection
  def initialize
    @query_cache = {}
  end

  def clear_query_cache
    @query_cache.clear
  end

  def select(sql)
    @query_cache[sql] ||= Result.new(%w[id body], Array.new(50) { |id| [id, "row #{id} of #{sql}"] })
  end
end

# Runs forever.
class ExportJob
  def perform(queries, ready)
    connection = Connection.new
    queries.times { |number| connection.select("SELECT #{number}") }
    forget(500)
    ready << true
    sleep
    connection
  end

  private

  # Overwrites old words of the stack.
  def forget(depth)
    depth.zero? ? 0 : forget(depth - 1)
  end
end

Scenario.run(commands: {
  "clear" => lambda do
    ObjectSpace.each_object(Connection, &:clear_query_cache)
    4.times { GC.start }
    {}
  end
}) do |scale|
  queries = (3_000 * scale).ceil
  ready = Queue.new
  Thread.new { ExportJob.new.perform(queries, ready) }
  ready.pop
  { results: queries }
end
