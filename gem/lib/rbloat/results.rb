# frozen_string_literal: true

# What all result sets consist of. `rbloat/results/pg` and `rbloat/results/mysql2` have those of the two libraries.
module Rbloat
end

require "rbloat/results/rbloat_results"
require_relative "results/cells"
require_relative "results/row"
