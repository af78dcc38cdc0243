# frozen_string_literal: true

# Forked processes.
module Rbloat
  # Restarts the gem's threads in processes that Ruby forks. Prepended to `Process.singleton_class`.
  #
  # Children that only run another program, such as those of `system`, do not call these methods and start no threads.
  # Ruby before 3.1 has no `_fork`: there the native threads are restarted inside fork(2).
  # @api private
  module Fork
    # Called by Kernel#fork, Process.fork and IO.popen("-").
    def _fork
      super.tap { |pid| Fork.resume if pid.zero? }
    end

    # Does not call _fork.
    def daemon(*)
      super.tap { Fork.resume }
    end

    def self.resume
      Rbloat.__send__(:resume_threads)
      Rbloat.__send__(:forget_growth)
      Notifier.resume
    end
  end
  private_constant :Fork

  Process.singleton_class.prepend(Fork) if Process.respond_to?(:_fork)
end
