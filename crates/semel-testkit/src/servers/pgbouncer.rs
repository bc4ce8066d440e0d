//! PgBouncer in transaction mode.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::guard::{Guard, free_port};
use super::postgres;

/// A pooler before the server of [`postgres`].
#[derive(Debug)]
pub struct PgBouncer {
    _guard: Guard,
    port: u16,
}

/// The pooler shared by all tests of this process; started by the first that asks.
#[must_use]
pub fn pgbouncer() -> &'static PgBouncer {
    static POOLER: OnceLock<PgBouncer> = OnceLock::new();
    POOLER.get_or_init(|| PgBouncer::before(postgres().port()))
}

impl PgBouncer {
    /// Starts one before the server on this port. Few server connections, so that clients get each other's.
    ///
    /// # Panics
    /// PgBouncer is not installed, or does not start.
    #[must_use]
    pub fn before(server: u16) -> Self {
        Self::logging_in(server, "postgres")
    }

    /// The same, which is this role for the server, whoever its clients say they are.
    ///
    /// # Panics
    /// PgBouncer is not installed, or does not start.
    #[must_use]
    pub fn logging_in(server: u16, role: &str) -> Self {
        let root = tempfile::Builder::new()
            .prefix("semel-pgbouncer-")
            .tempdir()
            .unwrap()
            .keep();
        let mut guard = Guard::new(&root);
        let port = free_port();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user={role}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 500\nserver_idle_timeout = 5\n"
        );
        let ini = root.join("pgbouncer.ini");
        std::fs::write(&ini, settings).unwrap();
        let mut command = Command::new(program());
        if rustix::process::geteuid().is_root() {
            // It refuses to run as root.
            let chown = Command::new("chown")
                .arg("-R")
                .arg("postgres")
                .arg(&root)
                .status()
                .unwrap();
            assert!(chown.success(), "chown of {}", root.display());
            command.args(["-u", "postgres"]);
        }
        let log = std::fs::File::create(root.join("log")).unwrap();
        let mut child = command
            .arg(&ini)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("PgBouncer is not installed: apt-get install pgbouncer, or set SEMEL_TEST_PGBOUNCER");
        guard.watch(i32::try_from(child.id()).unwrap());
        until_up(&mut child, port, &root);
        Self { _guard: guard, port }
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The way through the pooler to the database of a direct URL, as other drivers take it.
    ///
    /// # Panics
    /// The URL has no port.
    #[must_use]
    pub fn plain_url(&self, direct: &str) -> String {
        let (server, database) = direct.rsplit_once('/').unwrap();
        let (host, _) = server.rsplit_once(':').unwrap();
        format!("{host}:{}/{database}", self.port)
    }

    /// The same for Semel, which has to know.
    #[must_use]
    pub fn url(&self, direct: &str) -> String {
        format!("{}?pooler=transaction", self.plain_url(direct))
    }
}

fn program() -> PathBuf {
    std::env::var_os("SEMEL_TEST_PGBOUNCER").map_or_else(
        || {
            // Debian keeps it where an ordinary user's PATH does not look.
            let debian = PathBuf::from("/usr/sbin/pgbouncer");
            if debian.exists() {
                debian
            } else {
                "pgbouncer".into()
            }
        },
        PathBuf::from,
    )
}

fn until_up(child: &mut Child, port: u16, root: &std::path::Path) {
    for _ in 0..300 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return;
        }
        let ended = child.try_wait().unwrap();
        let log = || std::fs::read_to_string(root.join("log")).unwrap_or_default();
        assert!(ended.is_none(), "PgBouncer ended: {}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("PgBouncer does not answer");
}
