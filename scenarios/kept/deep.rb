# frozen_string_literal: true

# 60 middlewares and blocks, as in Rails, and a memo that keeps what it computes in every fourth request.

require_relative "load"

Layer = Struct.new(:app, :number) do
  def call(env)
    env = env.merge("x#{number}" => number.to_s)
    env.each_value(&:size)
    app.call(env)
  end
end

class Memo
  PERMISSIONS = {}

  def fetch(number)
    PERMISSIONS.fetch(number) { PERMISSIONS[number] = compute(number) }
  end

  def compute(number)
    Array.new(20) { |i| "permission #{number} #{i} may read and write" }
  end
end

class Controller
  def around
    before = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
  ensure
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - before
  end

  def call(env)
    around { around { Memo.new.fetch(env["number"]) if (env["number"] % 4).zero? } }
  end
end

app = 60.times.inject(Controller.new) { |inner, number| Layer.new(inner, number) }
Load.run(threads: 4) { |number| app.call({ "number" => number }) }
