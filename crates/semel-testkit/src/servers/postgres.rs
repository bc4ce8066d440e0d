//! PostgreSQL.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::guard::{Guard, free_port};
use super::is_for_speed;

/// One PostgreSQL server.
#[derive(Debug)]
pub struct PostgresServer {
    guard: Guard,
    port: u16,
    bin: PathBuf,
    databases: AtomicU32,
}

/// The server shared by all tests of this process; started by the first that asks.
#[must_use]
pub fn postgres() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(PostgresServer::start)
}

impl PostgresServer {
    /// Starts a server of one's own, for tests that kill it.
    ///
    /// # Panics
    /// PostgreSQL is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        let mut server = Self::in_a_new_folder();
        run(as_postgres(&server.bin.join("initdb"))
            .args([
                "-A",
                "trust",
                "-U",
                "postgres",
                "--no-sync",
                "-E",
                "UTF8",
                "--locale=C",
                "-D",
            ])
            .arg(server.data()));
        server.launch();
        server
    }

    /// A standby of this server that streams from it and answers queries. The primary waits for it where
    /// `synchronous_standby_names` says so. Killed and started again it catches up, if the primary is there.
    ///
    /// # Panics
    /// The server does not run, or the standby does not start.
    #[must_use]
    pub fn standby(&self) -> Self {
        let mut standby = Self::in_a_new_folder();
        run(as_postgres(&standby.bin.join("pg_basebackup"))
            .args(["-h", "127.0.0.1", "-U", "postgres", "-p", &self.port.to_string()])
            .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-D"])
            .arg(standby.data()));
        standby.launch();
        standby
    }

    /// Makes a standby the primary; returns when it takes writes. What it had not received is not in it.
    ///
    /// # Panics
    /// It is no standby, or does not run.
    pub fn promote(&self) {
        run(as_postgres(&self.bin.join("pg_ctl"))
            .arg("-D")
            .arg(self.data())
            .args(["-w", "-t", "60", "promote"]));
    }

    fn in_a_new_folder() -> Self {
        let root = tempfile::Builder::new()
            .prefix("semel-pg-")
            .tempdir()
            .unwrap()
            .keep();
        let guard = Guard::new(&root);
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(&root));
        }
        Self {
            guard,
            port: free_port(),
            bin: find_bin(),
            databases: AtomicU32::new(0),
        }
    }

    fn data(&self) -> PathBuf {
        self.guard.dir().join("data")
    }

    fn launch(&mut self) {
        self.try_launch()
            .unwrap_or_else(|why| panic!("PostgreSQL does not start: {why}"));
    }

    fn try_launch(&mut self) -> Result<(), String> {
        let cached_mb = if is_for_speed() { 512 } else { 64 };
        let options = format!(
            "-p {} -k {} -c listen_addresses=127.0.0.1 -c wal_level=logical -c max_prepared_transactions=20 \
             -c max_connections=200 -c shared_buffers={cached_mb}MB",
            self.port,
            self.guard.dir().display()
        );
        let log = self.guard.dir().join("log");
        // Not `output()`: the server would inherit the pipe and keep it open.
        let status = as_postgres(&self.bin.join("pg_ctl"))
            .arg("-D")
            .arg(self.data())
            .arg("-l")
            .arg(&log)
            .args(["-o", &options, "-w", "-t", "60", "start"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        if !status.success() {
            return Err(std::fs::read_to_string(log).unwrap_or_default());
        }
        let text = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        self.guard
            .watch(text.lines().next().unwrap().trim().parse().unwrap());
        Ok(())
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a database on this server.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// A new, empty database; its URL.
    #[must_use]
    pub fn fresh_database(&self) -> String {
        let name = format!(
            "t{}_{}",
            std::process::id(),
            self.databases.fetch_add(1, Ordering::Relaxed)
        );
        run(as_postgres(&self.bin.join("createdb")).args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-p",
            &self.port.to_string(),
            &name,
        ]));
        self.url(&name)
    }

    /// One of the server's programs, such as `pg_dump`, told how to reach it.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let mut command = as_postgres(&self.bin.join(name));
        let port = self.port.to_string();
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port]);
        command
    }

    /// Runs statements in the database of this URL, all in one transaction.
    ///
    /// # Panics
    /// The server refuses one.
    pub fn run_sql(&self, url: &str, sql: &str) {
        run(self
            .program("psql")
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]));
    }

    /// What `pg_dump` writes of the database of this URL.
    ///
    /// # Panics
    /// It cannot be read.
    #[must_use]
    pub fn dump(&self, url: &str) -> String {
        let output = self.program("pg_dump").args(["-d", url]).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Makes the database of this URL anew from a dump; sessions in it are ended.
    ///
    /// # Panics
    /// The server refuses it.
    pub fn put_back(&self, url: &str, dump: &str) {
        let name = url.rsplit_once('/').map_or(url, |(_, name)| name);
        run(self.program("dropdb").args(["--force", name]));
        run(self.program("createdb").arg(name));
        let file = self.guard.dir().join(format!("{name}.sql"));
        std::fs::write(&file, dump).unwrap();
        let input = std::fs::File::open(&file).unwrap();
        run(self
            .program("psql")
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url])
            .stdin(input));
        std::fs::remove_file(file).unwrap();
    }

    /// `kill -9` of the whole server: sessions too, which would otherwise go on for a moment and still commit. Returns
    /// when they are gone.
    pub fn kill(&self) {
        // A stopped postmaster starts no new session meanwhile.
        self.guard.pause();
        self.guard.kill_children();
        self.guard.kill();
    }

    /// SIGSTOP of the postmaster: new connections hang, existing ones go on.
    pub fn pause(&self) {
        self.guard.pause();
    }

    /// Processor time of all its processes since it was started.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        self.guard.processor_time()
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.guard.resume();
    }

    /// Starts it again on the same port and data after [`PostgresServer::kill`]; waits until it answers.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        // The children of a killed postmaster hold its shared memory for a moment; starting is refused until then.
        let mut last = String::new();
        for _ in 0..100 {
            match self.try_launch() {
                Ok(()) => return,
                Err(why) => last = why,
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("PostgreSQL does not start again: {last}");
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// PostgreSQL refuses to run as root.
fn as_postgres(program: &std::path::Path) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/");
    command
}

fn find_bin() -> PathBuf {
    if let Some(dir) = std::env::var_os("SEMEL_TEST_PG_BIN") {
        return dir.into();
    }
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|dir| dir.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    versions.retain(|bin| bin.join("initdb").exists());
    versions.sort();
    versions
        .pop()
        .expect("PostgreSQL is not installed: apt-get install postgresql, or set SEMEL_TEST_PG_BIN")
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
