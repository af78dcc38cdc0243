# frozen_string_literal: true

require "digest"
require "fileutils"
require "rbconfig"
require "socket"
require "tmpdir"

# Real database servers, on a socket in a folder of their own. They end with the process that started them.
module Servers
  PATIENCE = 120
  NOBODY = 65_534
  # What the tests preload is not for servers.
  OWN_MALLOC = { "LD_PRELOAD" => nil }.freeze

  class << self
    # The environment's variables by which clients find PostgreSQL, started by the first call.
    def postgres
      @postgres ||= start do |folder, user|
        programs = Dir["/usr/lib/postgresql/*/bin"].max || raise("PostgreSQL is not installed")
        system(OWN_MALLOC, *user, "#{programs}/initdb", "--pgdata=#{folder}/data", "--username=postgres",
               "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync",
               out: "#{folder}/log", err: "#{folder}/log", exception: true)
        # Its socket is there before it answers; the eighth line tells pg_ctl when it does.
        ready = lambda do
          File.exist?("#{folder}/data/postmaster.pid") &&
            File.readlines("#{folder}/data/postmaster.pid")[7].to_s.strip == "ready"
        end
        [["#{programs}/postgres", "-D", "#{folder}/data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"],
         ready, { "PGHOST" => folder, "PGPORT" => "5432", "PGUSER" => "postgres", "PGDATABASE" => "postgres" }]
      end
    end

    # The same for MariaDB. Without its system tables, which take seconds to make: whoever reaches the socket may read.
    def mariadb
      @mariadb ||= start do |folder|
        socket = "#{folder}/socket"
        [["/usr/sbin/mariadbd", "--no-defaults", "--datadir=#{folder}", "--tmpdir=#{folder}", "--socket=#{socket}",
          "--pid-file=#{folder}/pid", "--skip-networking", "--skip-grant-tables", "--innodb=OFF",
          "--default-storage-engine=Aria"],
         -> { connects?(socket) }, { "MYSQL_UNIX_PORT" => socket }]
      end
    end

    # The library of scenarios/owners/libpq_unaccounted.c, or of another C file, compiled for this Ruby.
    def extension(source, *libraries)
      name = File.basename(source, ".c")
      built_for = Digest::SHA256.hexdigest(File.read(source) + RUBY_DESCRIPTION)[0, 16]
      library = File.expand_path("../tmp/extensions/#{built_for}/#{name}.so", __dir__)
      return library if File.exist?(library)

      FileUtils.mkdir_p(File.dirname(library))
      headers = RbConfig::CONFIG.values_at("rubyhdrdir", "rubyarchhdrdir").map { |it| "-I#{it}" }
      system("cc", "-shared", "-fPIC", "-O1", "-g", *headers, "-o", "#{library}.#{Process.pid}", source, *libraries,
             exception: true)
      File.rename("#{library}.#{Process.pid}", library)
      library
    end

    private

    # The block is given a folder and the words before a command that make it another user's, since PostgreSQL refuses
    # root; it returns the command, what tells that it is ready, and the variables.
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

    # PostgreSQL ends its own children on SIGQUIT; on a SIGKILL it would leave some behind.
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
