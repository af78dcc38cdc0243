# frozen_string_literal: true

# A list of rows at the end of a long path, so that a word of an earlier owner, which refers to a row, makes a shorter one.

Row = Class.new

# Refers to a value.
class Box
  attr_reader :value

  def initialize(value)
    @value = value
  end

  # A value in this many boxes, one inside the other.
  def self.around(value, depth)
    depth.times.inject(value) { |inner, _| new(inner) }
  end

  # The value in the innermost box.
  def innermost
    value.is_a?(Box) ? value.innermost : value
  end
end
