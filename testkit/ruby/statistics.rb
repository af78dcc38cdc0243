# frozen_string_literal: true

# Statistics of repeated measurements.
module Statistics
  # Returns the median; of an even number of values, the upper one of the two in the middle.
  def self.median(values)
    values.sort[values.size / 2]
  end

  # Returns the mean and its standard error (0 for a single value), as a Hash.
  def self.mean(values)
    middle = values.sum.fdiv(values.size)
    variance = values.sum { |each| (each - middle)**2 } / [values.size - 1, 1].max
    { middle: middle, error: Math.sqrt(variance / values.size) }
  end

  # Returns the geometric mean of ratios, its standard error, and the range, as a Hash.
  def self.ratio(ratios)
    middle, error = mean(ratios.map { |ratio| Math.log(ratio) }).values
    { middle: Math.exp(middle), error: Math.exp(middle) * error, low: ratios.min, high: ratios.max }
  end

  # The median, the lowest and the highest of some values.
  Spread = Struct.new(:median, :low, :high) do
    def self.of(values)
      new(Statistics.median(values), *values.minmax)
    end

    # Returns "median (min–max)", each in units of +unit+.
    def show(format, unit = 1)
      middle, low, high = to_a.map { |value| format(format, value / unit.to_f) }
      "#{middle} (#{low}–#{high})"
    end
  end
end
