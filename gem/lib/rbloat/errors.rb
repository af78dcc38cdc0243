# frozen_string_literal: true

module Rbloat
  # The superclass of the gem's own errors.
  class Error < StandardError; end

  # Raised if this platform, or its malloc, does not support a method.
  class UnsupportedError < Error; end
end
