# frozen_string_literal: true

# Keeps the memory use of a Ruby process low, and reports where the memory is.
module Rbloat
  # The version of the gem.
  VERSION = "0.1.0"
end
