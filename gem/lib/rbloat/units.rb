# frozen_string_literal: true

module Rbloat
  # Sizes for people to read.
  # @api private
  module Units
    NAMES = %w[B KiB MiB GiB TiB].freeze

    # A size such as "1.0 MiB".
    # @param bytes [Integer]
    # @return [String]
    def self.binary(bytes)
      return "#{bytes} B" if bytes < 1024

      power = [(bytes.bit_length - 1) / 10, NAMES.size - 1].min
      "#{bytes.fdiv(1024**power).round(1)} #{NAMES[power]}"
    end
  end
  private_constant :Units
end
