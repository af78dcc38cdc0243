use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Gives the folder `$0` to the user that the server runs as, since PostgreSQL refuses root. Programs run by `$as` get
/// SIGQUIT when the thread that started them ends. MariaDB gets SIGKILL: if it is asked to end while it starts, it may
/// hang.
const UNPRIVILEGED: &str = r#"
    set -e
    as="setpriv --pdeathsig QUIT"
    if [ "$(id -u)" = 0 ]; then
        chown 65534:65534 "$0"
        as="$as --reuid 65534 --regid 65534 --clear-groups"
    fi
"#;

const POSTGRES: &str = r#"
    programs=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
    $as "$programs/initdb" --pgdata="$0/data" --username=postgres --auth=trust \
        --encoding=UTF8 --locale=C --no-sync
    exec $as "$programs/postgres" -D "$0/data" -k "$0" -c listen_addresses= -c fsync=off
"#;

/// Without its system tables, which take seconds to make, so every user of the socket may read.
const MARIADB: &str = r#"
    exec $as setpriv --pdeathsig KILL /usr/sbin/mariadbd --no-defaults --datadir="$0" --tmpdir="$0" --socket="$0/socket" \
        --pid-file="$0/pid" --skip-networking --skip-grant-tables --innodb=OFF \
        --default-storage-engine=Aria
"#;

/// The maximum time that a server may take to start.
const PATIENCE: Duration = Duration::from_secs(120);

/// A database server for the targets, in their system, on a socket in a folder of its own. It ends when this value is
/// dropped, or when the thread that started it ends for any reason.
#[derive(Debug)]
pub struct Server {
    child: Child,
    folder: TempDir,
    variables: Vec<(&'static str, OsString)>,
}

impl Server {
    /// Starts PostgreSQL.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn postgres() -> Self {
        let mut server = Self::start(POSTGRES, |folder| {
            // The socket exists before the server answers. The eighth line, which pg_ctl reads, shows when it is ready.
            let status = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap_or_default();
            status.lines().nth(7).is_some_and(|line| line.trim() == "ready")
        });
        server.variables = vec![
            ("PGHOST", server.folder.path().into()),
            ("PGPORT", "5432".into()),
            ("PGUSER", "postgres".into()),
            ("PGDATABASE", "postgres".into()),
        ];
        server
    }

    /// Starts MariaDB.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn mariadb() -> Self {
        let mut server =
            Self::start(MARIADB, |folder| UnixStream::connect(folder.join("socket")).is_ok());
        server.variables = vec![("MYSQL_UNIX_PORT", server.folder.path().join("socket").into())];
        server
    }

    /// The environment variables with which a client library, or a scenario, finds it.
    #[must_use]
    pub fn variables(&self) -> &[(&'static str, OsString)] {
        &self.variables
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Runs `script` with a new folder as its `$0`, and returns when `is_ready` returns true for the folder.
    fn start(script: &str, is_ready: fn(&Path) -> bool) -> Self {
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        let log = folder.path().join("log");
        let output = File::create(&log).expect("a new folder can be written to");
        let child = crate::command("setpriv")
            .args(["--pdeathsig", "KILL", "sh", "-c", &format!("{UNPRIVILEGED}{script}")])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stderr(output.try_clone().expect("a file can be shared"))
            .stdout(output)
            .spawn()
            .unwrap_or_else(|error| panic!("setpriv: {error}"));
        let mut server = Self { child, folder, variables: Vec::new() };
        let started = Instant::now();
        while !is_ready(server.folder.path()) {
            let ended = server.child.try_wait().expect("it is a child");
            if ended.is_some() || started.elapsed() > PATIENCE {
                let log = fs::read_to_string(&log).unwrap_or_default();
                panic!("the server did not start ({ended:?}):\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // PostgreSQL ends its children on SIGQUIT. On SIGKILL some of them would remain.
        let quit = format!("kill -QUIT {}", self.pid());
        let _ = Command::new("sh").args(["-c", &quit]).status();
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            // A server that is asked to end while it starts may hang.
            if started.elapsed() > PATIENCE {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
