# frozen_string_literal: true

# Calls are kept that nobody finishes, each with an arena of the library (grpc/grpc#25877, grpc/grpc#12493,
# googleapis/google-cloud-ruby#1421). The request "step" starts more of them.

# Its library is a gem, and tests start scenarios without RubyGems.
require "rubygems"
require "grpc"
require_relative "../lib/scenario"

# The calls of one client.
module Rpc
  CHANNEL = GRPC::Core::Channel.new("localhost:1", {}, :this_channel_is_insecure)
  CALLS = []

  def self.start(count)
    count.times { CALLS << CHANNEL.create_call(nil, nil, "/service/method", nil, Time.now + 3600) }
  end
end

def step
  Rpc.start(3000)
  GC.start
  { objects: Rpc::CALLS.size }
end

Scenario.run(commands: { "step" => method(:step) }) do |scale|
  Rpc.start((12_000 * scale).ceil)
  { objects: Rpc::CALLS.size }
end
