//! MariaDB.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::guard::{Guard, free_port};

/// One MariaDB server. Its user `root` comes in without a password, from this machine only.
#[derive(Debug)]
pub struct MariadbServer {
    guard: Guard,
    process: Child,
    port: u16,
    options: Vec<String>,
    databases: AtomicU32,
}

/// The server shared by all tests of this process; started by the first that asks.
#[must_use]
pub fn mariadb() -> &'static MariadbServer {
    static SERVER: OnceLock<MariadbServer> = OnceLock::new();
    SERVER.get_or_init(MariadbServer::start)
}

impl MariadbServer {
    /// Starts a server of one's own, for tests that kill it.
    ///
    /// # Panics
    /// MariaDB is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with options of its own, such as `--innodb-flush-log-at-trx-commit=2`.
    ///
    /// # Panics
    /// MariaDB is not installed, or does not start.
    #[must_use]
    pub fn start_with(options: &[&str]) -> Self {
        let root = tempfile::Builder::new()
            .prefix("semel-my-")
            .tempdir()
            .unwrap()
            .keep();
        let mut guard = Guard::new(&root);
        std::fs::create_dir(root.join("tmp")).unwrap();
        if is_root() {
            run(Command::new("chown").args(["-R", "mysql"]).arg(&root));
        }
        let mut install = Command::new(program("mariadb-install-db"));
        install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
        install.args(["--skip-test-db", "--skip-name-resolve", SMALL]);
        as_mysql(&mut install)
            .arg(format!("--datadir={}", root.join("data").display()))
            .arg(tmpdir(&root))
            .current_dir("/");
        run(&mut install);
        let port = free_port();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let process = launch(&root, port, &options);
        guard.watch(i32::try_from(process.id()).unwrap());
        let mut server = Self {
            guard,
            process,
            port,
            options,
            databases: AtomicU32::new(0),
        };
        server.wait_until_it_answers();
        server
    }

    fn wait_until_it_answers(&mut self) {
        for _ in 0..600 {
            if let Some(status) = self.process.try_wait().unwrap() {
                panic!("MariaDB does not start ({status}): {}", self.log());
            }
            let listens = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            if listens
                && self
                    .client()
                    .args(["-e", "SELECT 1"])
                    .output()
                    .unwrap()
                    .status
                    .success()
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("MariaDB does not answer: {}", self.log());
    }

    /// What the server has written to its log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.guard.dir().join("log")).unwrap_or_default()
    }

    fn client(&self) -> Command {
        let mut client = Command::new(program("mariadb"));
        client
            .args(["--no-defaults", "-u", "root", "-S"])
            .arg(self.guard.dir().join("socket"))
            .current_dir("/");
        client
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a database on this server.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{}/{database}", self.port)
    }

    /// A new, empty database; its URL.
    #[must_use]
    pub fn fresh_database(&self) -> String {
        let name = format!(
            "t{}_{}",
            std::process::id(),
            self.databases.fetch_add(1, Ordering::Relaxed)
        );
        self.run_sql(&format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// Runs statements as `root`; for users, rights and global settings.
    ///
    /// # Panics
    /// One of them fails.
    pub fn run_sql(&self, sql: &str) {
        run(self.client().args(["-e", sql]));
    }

    /// `kill -9`. Returns when the server is gone.
    pub fn kill(&mut self) {
        self.guard.kill();
        self.process.wait().unwrap();
    }

    /// SIGSTOP: connections hang.
    pub fn pause(&self) {
        self.guard.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.guard.resume();
    }

    /// Starts it again on the same port and data after [`MariadbServer::kill`]; waits until it answers.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        self.process = launch(self.guard.dir(), self.port, &self.options);
        self.guard.watch(i32::try_from(self.process.id()).unwrap());
        self.wait_until_it_answers();
    }
}

impl Drop for MariadbServer {
    fn drop(&mut self) {
        self.guard.kill();
        // Reaped here, so that the watchdog does not take a zombie for a server that still runs.
        let _ = self.process.wait();
    }
}

/// The default log takes 96 MB of disk for each server.
const SMALL: &str = "--innodb-log-file-size=16M";

fn launch(root: &Path, port: u16, options: &Vec<String>) -> Child {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(root.join("log"))
        .unwrap();
    let mut server = Command::new(program("mariadbd"));
    server.arg("--no-defaults");
    as_mysql(&mut server)
        .arg(format!("--datadir={}", root.join("data").display()))
        .arg(format!("--socket={}", root.join("socket").display()))
        .arg(tmpdir(root))
        .arg(format!("--pid-file={}", root.join("pid").display()))
        .arg(format!("--port={port}"))
        .args(["--bind-address=127.0.0.1", "--skip-name-resolve", SMALL])
        .args(["--max-connections=300", "--innodb-buffer-pool-size=128M"])
        .args(options)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// A folder of its own: a server that starts removes all temporary tables it finds there, other servers' too.
fn tmpdir(root: &Path) -> String {
    format!("--tmpdir={}", root.join("tmp").display())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// MariaDB does not like to run as root.
fn as_mysql(command: &mut Command) -> &mut Command {
    if is_root() {
        command.arg("--user=mysql");
    }
    command
}

fn program(name: &str) -> PathBuf {
    if let Some(dir) = std::env::var_os("SEMEL_TEST_MARIADB_BIN") {
        return Path::new(&dir).join(name);
    }
    ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| {
            panic!("{name} is missing: apt-get install mariadb-server, or set SEMEL_TEST_MARIADB_BIN")
        })
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
