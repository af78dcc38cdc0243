# frozen_string_literal: true

module Rbloat
  VERSION = "0.1.0"
end
