# frozen_string_literal: true

# Sizes for people to read.
module Rbloat
  BINARY_UNITS = %w[B KiB MiB GiB TiB].freeze
  private_constant :BINARY_UNITS

  # A size for people to read, such as "1.0 MiB".
  # @param bytes [Integer]
  # @return [String]
  # @api private
  def self.binary_size(bytes)
    return "#{bytes} B" if bytes < 1024

    power = [(bytes.bit_length - 1) / 10, BINARY_UNITS.size - 1].min
    "#{bytes.fdiv(1024**power).round(1)} #{BINARY_UNITS[power]}"
  end
end
