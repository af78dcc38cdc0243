# frozen_string_literal: true

# usage: million.rb [REQUESTS]
#
# Answers a million requests of a Rails controller by five threads, with all of the gem: AutoTrim, NativePressure,
# growth by action, the middleware, notifications, and statistics that are read every thousand requests. Each request
# makes strings and drops them. Prints JSON: what the process has in use after each tenth of them, and a garbage
# collection. It may not grow. Without Rails, a program for Rack answers, without growth by action and notifications.

require "json"
require "logger"
require "objspace"
begin
  require "action_controller"
rescue LoadError
  nil
end

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require "rbloat"

REQUESTS = Integer(ARGV.fetch(0, 1_000_000))
THREADS = 5
STEPS = 10

Rbloat.configure do |config|
  config.profile = :job
  config.growth = true
  config.logger = Logger.new(IO::NULL)
end
Rbloat.start

RANDOM = Random.new(1)
text = -> { Array.new(20) { "x" * RANDOM.rand(16..2_000) }.join }
events = 0
if defined?(ActionController)
  ActiveSupport::Notifications.subscribe(/\.rbloat\z/) { events += 1 }
  page = Class.new(ActionController::API) { define_method(:show) { render plain: text.call } }
  # The growth by action names it.
  Object.const_set(:PagesController, page)
  answer = page.action(:show)
  request_to = ->(path) { Rack::MockRequest.env_for(path) }
else
  answer = ->(_env) { [200, {}, [text.call]] }
  request_to = ->(path) { { "REQUEST_METHOD" => "GET", "PATH_INFO" => path } }
end
requests = Rbloat::RequestLog.new(answer)

# Exact figures: bytes that malloc has in use, live objects, and their bytes.
in_use = lambda do
  3.times { GC.start }
  slots = ObjectSpace.count_objects
  { malloc_bytes: Rbloat.malloc_stats[:in_use_bytes], objects: slots[:TOTAL] - slots[:FREE],
    object_bytes: ObjectSpace.memsize_of_all, rss_bytes: Rbloat.rss_bytes }
end

points = Array.new(STEPS) do |step|
  threads = Array.new(THREADS) do
    Thread.new do
      (REQUESTS / STEPS / THREADS).times do |request|
        requests.call(request_to["/#{request}"])
        Rbloat.stats if (request % 1_000).zero?
      end
    end
  end
  threads.each(&:join)
  { requests: (step + 1) * (REQUESTS / STEPS), **in_use.call }
end
trims = Rbloat.stats[:auto_trim_trims]
puts JSON.generate(points: points, trims: trims, events: events, growth: Rbloat.growth)
