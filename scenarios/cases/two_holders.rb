# frozen_string_literal: true

# A registry and the caches of many pools have the same columns (rails/rails#36529). The request "clear_registry" empties the one, and
# "clear_both" also the others.

require_relative "../lib/scenario"

# A column of a table.
class Column
  def initialize(name)
    @name = name
    @default = name * 80
  end

  attr_reader :name

  @registry = {}

  class << self
    attr_reader :registry
  end
end

module Pools
  CACHES = []
end

def clear(*lists)
  lists.each(&:clear)
  GC.start
  { columns: ObjectSpace.each_object(Column).count }
end

Scenario.run(
  commands: {
    "clear_registry" => -> { clear(Column.registry) },
    "clear_both" => -> { clear(Column.registry, Pools::CACHES) }
  }
) do |scale|
  pools = (60 * scale).ceil
  pools.times do |pool|
    columns = Array.new(500) { |number| Column.new("column#{pool}_#{number}") }
    columns.each { |column| Column.registry[column.name] = column }
    Pools::CACHES << { "table" => columns }
  end
  { created: pools * 500 }
end
