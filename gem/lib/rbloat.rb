# frozen_string_literal: true

require_relative "rbloat/version"
require_relative "rbloat/rbloat"
require_relative "rbloat/fork"
require_relative "rbloat/malloc"
require_relative "rbloat/size"
require_relative "rbloat/auto_trim"
require_relative "rbloat/native_pressure"
require_relative "rbloat/cells"
require_relative "rbloat/row"
require_relative "rbloat/probe"
require_relative "rbloat/report"

require_relative "rbloat/start"
