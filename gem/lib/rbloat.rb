# frozen_string_literal: true

require_relative "rbloat/version"
require_relative "rbloat/rbloat"
require_relative "rbloat/malloc"
require_relative "rbloat/auto_trim"
require_relative "rbloat/native_pressure"
require_relative "rbloat/cells"
require_relative "rbloat/row"

# Keeps the memory of a Ruby process low by itself, and tells where it went.
module Rbloat
end

require_relative "rbloat/start"
