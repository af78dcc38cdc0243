# frozen_string_literal: true

# The table and the rows of all result sets. `rbloat/results/pg` and `rbloat/results/mysql2` have those of each library.
module Rbloat
end

require "rbloat/results/rbloat_results"
require_relative "results/cells"
require_relative "results/row"
