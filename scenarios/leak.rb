# frozen_string_literal: true

# The everyday leak: a registry in a constant to which the program only adds.

require_relative "lib/scenario"

SESSIONS = {}
TOTAL = 250_000
BODY_BYTES = (1_000..2_000).freeze

Scenario.run(expect: "ruby.malloc") do |scale|
  random = Random.new(1)
  (TOTAL * scale).round.times do |id|
    SESSIONS[id] = { path: "/orders/#{id}", tags: %w[order web], body: "x" * random.rand(BODY_BYTES) }
  end
  { sessions: SESSIONS.size, body_bytes: SESSIONS.each_value.sum { |session| session[:body].bytesize } }
end
