# frozen_string_literal: true

require "net/http"
require "rbconfig"
require "socket"
require "tempfile"

require_relative "../../../testkit/ruby/setting"

# A Puma that serves the shop.
class Server
  CONFIGURATION = File.expand_path("../config/puma.rb", __dir__)
  PATIENCE = 60

  attr_reader :pid, :url, :setting

  # Starts Puma on a free port; without workers it is a single process. `before` are the words of a command that
  # executes Puma, and `environment` adds to the variables of the setting.
  def initialize(database, setting: "default", workers: 0, threads: 5, before: [], environment: {})
    @setting = setting
    @workers = workers
    port = TCPServer.open("127.0.0.1", 0) { |socket| socket.addr[1] }
    @url = "http://127.0.0.1:#{port}"
    variables = { "WORKERS" => workers.to_s, "THREADS" => threads.to_s, "BIND" => "tcp://127.0.0.1:#{port}" }
    @log = Tempfile.create("rbloat-shop")
    # Only Puma may have the preloaded library, not the command before it.
    words = Setting.environment(setting).merge(environment).map { |name, value| value ? "#{name}=#{value}" : "--unset=#{name}" }
    words.sort_by! { |word| word.start_with?("--") ? 0 : 1 }
    @pid = Process.spawn(database.merge(variables), *before, "env", *words, RbConfig.ruby, "-S", "puma", "-C",
                         CONFIGURATION, in: File::NULL, out: @log, err: @log)
    wait_until_ready
  end

  # Returns the processes that answer requests.
  def serving
    @workers.zero? ? [pid] : File.read("/proc/#{pid}/task/#{pid}/children").split.map(&:to_i)
  end

  def get(path)
    Net::HTTP.get_response(URI("#{url}#{path}"))
  end

  # Asks Puma to end, and kills it if it does not.
  def stop
    Process.kill(:TERM, pid) unless ended?
    Process.kill(:KILL, pid) unless within(PATIENCE) { ended? }
    within(PATIENCE) { ended? }
    @log.close
    File.unlink(@log.path)
  end

  private

  def wait_until_ready
    return if within(PATIENCE) { ended? || ready? } && !ended?

    said = File.read(@log.path)
    stop
    raise "Puma did not start:\n#{said}"
  end

  def ended?
    @ended ||= Process.wait(pid, Process::WNOHANG)
  end

  # Returns true if the block returns true within +seconds+.
  def within(seconds)
    limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    until (is_true = yield)
      return false if Process.clock_gettime(Process::CLOCK_MONOTONIC) > limit

      sleep 0.1
    end
    is_true
  end

  # The master's socket exists before its workers accept connections.
  def ready?
    serving.size >= @workers && get("/orders/1").is_a?(Net::HTTPSuccess)
  rescue SystemCallError, Net::ReadTimeout, EOFError
    false
  end
end
