# frozen_string_literal: true

require "puma/plugin"
require "rbloat/core"

# Calls Rbloat.start. AutoTrim then also trims when no request is being processed, and before workers are forked. Put
# `plugin :rbloat` into config/puma.rb.
Puma::Plugin.create do
  def config(dsl)
    dsl.out_of_band { Rbloat::AutoTrim.quiet! }
  end

  # The number of workers is not known before.
  def start(launcher)
    return unless Rbloat.start && launcher.options[:workers].to_i.positive?

    # The application may turn AutoTrim off.
    prepare = proc do
      Rbloat::AutoTrim.prepare_fork(warmup: Rbloat.configuration.warmup) if Rbloat::AutoTrim.running?
    end
    launcher.config.configure { |_user, file, _default| file.before_fork(&prepare) }
  end
end
