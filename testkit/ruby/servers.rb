# frozen_string_literal: true

require "fileutils"
require "socket"
require "tmpdir"

# Real database servers for tests and measurements, each on a socket in its own folder. They end with the process that
# started them.
module Servers
  PATIENCE = 120
  NOBODY = 65_534
  # Libraries that tests preload are not for servers.
  OWN_MALLOC = { "LD_PRELOAD" => nil }.freeze

  class << self
    # Returns the environment variables that clients need to find PostgreSQL. The first call starts it.
    def postgres
      @postgres ||= start do |folder, user|
        programs = Dir["/usr/lib/postgresql/*/bin"].max || raise("PostgreSQL is not installed")
        system(OWN_MALLOC, *user, "#{programs}/initdb", "--pgdata=#{folder}/data", "--username=postgres",
               "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync",
               out: "#{folder}/log", err: "#{folder}/log", exception: true)
        # The socket exists before the server answers. The eighth line is for pg_ctl, and contains the state.
        ready = lambda do
          File.exist?("#{folder}/data/postmaster.pid") &&
            File.readlines("#{folder}/data/postmaster.pid")[7].to_s.strip == "ready"
        end
        [["#{programs}/postgres", "-D", "#{folder}/data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"],
         ready, { "PGHOST" => folder, "PGPORT" => "5432", "PGUSER" => "postgres", "PGDATABASE" => "postgres" }]
      end
    end

    # Returns the environment variables that clients need to find MariaDB. The first call starts it, without system
    # tables, because creating them takes seconds. Without them there is no authentication.
    def mariadb
      @mariadb ||= start do |folder|
        socket = "#{folder}/socket"
        [["/usr/sbin/mariadbd", "--no-defaults", "--datadir=#{folder}", "--tmpdir=#{folder}", "--socket=#{socket}",
          "--pid-file=#{folder}/pid", "--skip-networking", "--skip-grant-tables", "--innodb=OFF",
          "--default-storage-engine=Aria"],
         -> { connects?(socket) }, { "MYSQL_UNIX_PORT" => socket }]
      end
    end

    private

    # Yields a folder, and the words that run a command as another user, since PostgreSQL refuses root. The block
    # returns the command, a lambda that checks whether the server is ready, and the environment variables for clients.
    def start
      folder = Dir.mktmpdir("rbloat-server")
      user = %w[setpriv --pdeathsig QUIT]
      if Process.uid.zero?
        File.chown(NOBODY, NOBODY, folder)
        user += %W[--reuid #{NOBODY} --regid #{NOBODY} --clear-groups]
      end
      command, ready, variables = yield(folder, user)
      log = File.open("#{folder}/log", "a")
      pid = Process.spawn(OWN_MALLOC, *user, *command, in: File::NULL, out: log, err: log)
      end_with(Process.pid, pid, folder)
      wait_for(pid, folder, &ready)
      variables
    end

    # PostgreSQL ends its children on SIGQUIT. After SIGKILL some would remain.
    def end_with(parent, pid, folder)
      at_exit do
        next unless Process.pid == parent

        Process.kill(:QUIT, pid)
        Process.wait(pid)
        FileUtils.rm_rf(folder)
      rescue SystemCallError
        nil
      end
    end

    def wait_for(pid, folder)
      limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE
      until yield
        ended = Process.wait(pid, Process::WNOHANG)
        late = Process.clock_gettime(Process::CLOCK_MONOTONIC) > limit
        raise "the server did not start:\n#{File.read("#{folder}/log")}" if ended || late

        sleep 0.02
      end
    end

    def connects?(socket)
      UNIXSocket.new(socket).close
      true
    rescue SystemCallError
      false
    end
  end
end
