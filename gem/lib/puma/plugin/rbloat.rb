# frozen_string_literal: true

require "puma/plugin"
require "rbloat"

# `plugin :rbloat` in config/puma.rb, after `workers`: trims also in the times when no request is worked on, and
# prepares memory to be shared before workers are forked.
Puma::Plugin.create do
  def config(dsl)
    Rbloat::AutoTrim.start
    dsl.out_of_band { Rbloat::AutoTrim.quiet! }
    # In a process without workers Puma would complain about the hook.
    dsl.before_fork { Rbloat::AutoTrim.prepare_fork } if dsl.get(:workers, 0).to_i.positive?
  end
end
