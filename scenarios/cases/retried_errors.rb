# frozen_string_literal: true

# A worker raises its last error again with each failure, so each error is the cause of the next one (`Exception#cause`), and one
# variable retains all of them with their backtraces. The request "clear" forgets the last error.

require_relative "../lib/scenario"

# Tries again for ever.
class Worker
  def initialize
    @last = RuntimeError.new("not tried")
  end

  def try(number)
    raise @last
  rescue StandardError
    begin
      raise IOError, "try #{number}: #{'no answer ' * 100}"
    rescue IOError => e
      @last = e
    end
  end

  # Tries again before, so that old words on the stack do not refer to the old errors.
  def clear
    initialize
    2.times { |number| try(number) }
    @last = nil
  end
end

WORKER = Worker.new

clear = lambda do
  WORKER.clear
  4.times { GC.start }
  { errors: ObjectSpace.each_object(IOError).count }
end

Scenario.run(commands: { "clear" => clear }) do |scale|
  count = (30_000 * scale).ceil
  count.times { |number| WORKER.try(number) }
  { objects: count }
end
