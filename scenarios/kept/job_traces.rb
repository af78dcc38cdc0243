# frozen_string_literal: true

# A profiler notes each query in a variable of the thread. Requests clear their notes at the end, and jobs do not
# (igorkasyanchuk/rails_performance#147). Of about 300 new objects, one stays.

require_relative "load"

# The notes of one request.
class CurrentRequest
  def self.current
    Thread.current[:current_request] ||= new
  end

  def initialize
    @tracings = []
  end

  def trace(options)
    @tracings << options.merge(time: 1_700_000_000)
  end
end

# Is told of each query.
class Subscriber
  def sql(payload)
    CurrentRequest.current.trace({ group: :db, duration: 0.09, sql: payload[:sql] })
  end
end

SUBSCRIBER = Subscriber.new

# A table of a database.
class Table
  def initialize(name)
    @name = name
  end

  def find(id)
    query = "SELECT * FROM #{@name} WHERE id = #{id} LIMIT 1"
    rows = execute(query)
    SUBSCRIBER.sql({ name: "find", sql: query })
    rows
  end

  private

  # The database answers.
  def execute(query)
    Load.check(query)
    Array.new(20) { |row| { id: row, name: "row #{row}" } }
  end
end

TABLES = %w[products prices kinds].map { |name| Table.new(name) }

Load.run { TABLES.each { |table| table.find(7).size } }
