# frozen_string_literal: true

# WORKERS (0: one process), THREADS of each, and BIND configure Puma.
workers Integer(ENV.fetch("WORKERS", "0"))
threads(*[Integer(ENV.fetch("THREADS", "5"))] * 2)
preload_app! if get(:workers).positive?
bind ENV.fetch("BIND", "tcp://127.0.0.1:9292")
environment "production"
rackup File.expand_path("../config.ru", __dir__)
plugin :rbloat if defined?(Rbloat)
