# frozen_string_literal: true

# Statistics of repeated measurements.
module Statistics
  # Returns the median; of an even number of values, the upper one of the two in the middle.
  def self.median(values)
    values.sort[values.size / 2]
  end

  # Returns the geometric mean of ratios, its standard error (0 for a single one), and the range, as a Hash.
  def self.ratio(ratios)
    logarithms = ratios.map { |ratio| Math.log(ratio) }
    middle = logarithms.sum / ratios.size
    variance = logarithms.sum { |each| (each - middle)**2 } / [ratios.size - 1, 1].max
    { middle: Math.exp(middle), error: Math.exp(middle) * Math.sqrt(variance / ratios.size),
      low: ratios.min, high: ratios.max }
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
