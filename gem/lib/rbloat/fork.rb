# frozen_string_literal: true

module Rbloat
  # Starts the gem's threads again in processes that Ruby forks, for `Process.singleton_class`. A child that another
  # program replaces at once, as `system` makes it, does not come here and pays for nothing. Before Ruby 3.1, which has
  # no hook for it, each forked process gets its threads inside fork(2).
  # @api private
  module Fork
    # Kernel#fork, Process.fork and IO.popen("-") call it.
    def _fork
      super.tap { |pid| Rbloat.__send__(:resume_threads) if pid.zero? }
    end

    # Does not call _fork.
    def daemon(*)
      super.tap { Rbloat.__send__(:resume_threads) }
    end
  end
end

Process.singleton_class.prepend(Rbloat::Fork) if Process.respond_to?(:_fork)
