# frozen_string_literal: true

# Everything but the Railtie: for programs that load the gem before Rails, such as Puma's configuration. A later
# `require "rbloat"` adds the Railtie.

# The extension: a platform gem has one for each version of Ruby.
compiled = "rbloat/#{RUBY_VERSION[/\A\d+\.\d+/]}/rbloat"
require File.exist?(File.expand_path("../#{compiled}.so", __dir__)) ? compiled : "rbloat/rbloat"

require_relative "version"
require_relative "errors"
require_relative "malloc"
require_relative "units"
require_relative "auto_trim"
require_relative "native_pressure"
require_relative "probe"
require_relative "report"
require_relative "metrics"
require_relative "growth"
require_relative "configuration"
require_relative "notifier"
require_relative "request_log"
require_relative "fork"

require_relative "start"
