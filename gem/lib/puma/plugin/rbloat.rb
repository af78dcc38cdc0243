# frozen_string_literal: true

require "puma/plugin"
require "rbloat"

# Starts AutoTrim. Also trims when no request is being processed, and before workers are forked. Put `plugin :rbloat`
# into config/puma.rb, after `workers`.
Puma::Plugin.create do
  def config(dsl)
    Rbloat::AutoTrim.start
    dsl.out_of_band { Rbloat::AutoTrim.quiet! }
    # Puma warns about the hook if there are no workers.
    dsl.before_fork { Rbloat::AutoTrim.prepare_fork } if dsl.get(:workers, 0).to_i.positive?
  end
end
