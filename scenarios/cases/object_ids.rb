# frozen_string_literal: true

# object_id of many objects fills two tables of the interpreter.

require_relative "../lib/scenario"

Scenario.run do |scale|
  ids = 0
  objects = Array.new((2_000_000 * scale).ceil) { Object.new }
  objects.each { |object| ids += 1 if object.object_id }
  Object.const_set(:KEPT, objects)
  { ids: ids }
end
