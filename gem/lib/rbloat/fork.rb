# frozen_string_literal: true

module Rbloat
  # Restarts the gem's threads in processes that Ruby forks. Prepended to `Process.singleton_class`.
  #
  # Children that only run another program, such as those of `system`, do not call these methods and start no threads.
  # Ruby before 3.1 has no `_fork`: there the threads are restarted inside fork(2).
  # @api private
  module Fork
    # Called by Kernel#fork, Process.fork and IO.popen("-").
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
