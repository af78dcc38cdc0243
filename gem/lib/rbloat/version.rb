# frozen_string_literal: true

# Keeps the memory of a Ruby process low by itself, and tells where it went.
module Rbloat
  # Of the gem.
  VERSION = "0.1.0"
end
