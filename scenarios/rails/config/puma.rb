# frozen_string_literal: true

# WORKERS (0: one process), THREADS of each, and BIND configure Puma. With WARMUP=1, the heap is prepared before the fork.
workers Integer(ENV.fetch("WORKERS", "0"))
threads(*[Integer(ENV.fetch("THREADS", "5"))] * 2)
preload_app! if get(:workers).positive?
before_fork { Process.warmup } if ENV["WARMUP"] == "1"
bind ENV.fetch("BIND", "tcp://127.0.0.1:9292")
environment "production"
rackup File.expand_path("../config.ru", __dir__)
plugin :rbloat if defined?(Rbloat)
