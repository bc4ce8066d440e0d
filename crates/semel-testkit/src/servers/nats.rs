//! NATS with JetStream.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::guard::{Guard, free_port};

/// How long it may take to answer.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// One NATS server with JetStream.
#[derive(Debug)]
pub struct NatsServer {
    guard: Guard,
    child: Option<Child>,
    port: u16,
    names: AtomicU32,
}

/// The server shared by all tests of this process; started by the first that asks.
#[must_use]
pub fn nats() -> &'static NatsServer {
    static SERVER: OnceLock<NatsServer> = OnceLock::new();
    SERVER.get_or_init(NatsServer::start)
}

impl NatsServer {
    /// Starts a server of one's own, for tests that kill it.
    ///
    /// # Panics
    /// It is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts a server of one's own with this text as its configuration file. Whoever names no user must be let in
    /// (`no_auth_user`).
    ///
    /// # Panics
    /// It is not installed, or does not start.
    #[must_use]
    pub fn start_with(config: &str) -> Self {
        let root = tempfile::Builder::new()
            .prefix("semel-nats-")
            .tempdir()
            .unwrap()
            .keep();
        fs::write(root.join("conf"), config).unwrap();
        let mut server = Self {
            guard: Guard::new(&root),
            child: None,
            port: free_port(),
            names: AtomicU32::new(0),
        };
        server.restart();
        server
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// A name for a stream or a subject that no other test uses.
    #[must_use]
    pub fn fresh_name(&self, prefix: &str) -> String {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{}-{number}", std::process::id())
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.guard.kill();
            child.wait().unwrap();
        }
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub fn pause(&self) {
        self.guard.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.guard.resume();
    }

    /// The same as [`NatsServer::restart`], with another configuration.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart_with(&mut self, config: &str) {
        fs::write(self.guard.dir().join("conf"), config).unwrap();
        self.restart();
    }

    /// Starts it again on the same port and data after [`NatsServer::kill`]; waits until JetStream answers.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        use std::os::unix::process::CommandExt as _;
        let root = self.guard.dir().to_owned();
        let log = File::options()
            .create(true)
            .append(true)
            .open(root.join("log"))
            .unwrap();
        let mut child = Command::new(program())
            .args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "-js", "-sd"])
            .arg(root.join("data"))
            .arg("-c")
            .arg(root.join("conf"))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("NATS is not installed: apt-get install nats-server");
        self.guard.watch(i32::try_from(child.id()).unwrap());
        let until = Instant::now() + READY_WITHIN;
        while let Err(error) = account_info(self.port) {
            let ended = child.try_wait().unwrap();
            if ended.is_some() || Instant::now() > until {
                let log = fs::read_to_string(root.join("log")).unwrap_or_default();
                panic!("NATS ended ({ended:?}) or takes too long ({error}):\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child = Some(child);
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program, from the folder that `SEMEL_TEST_NATS_BIN` names, or from the path.
fn program() -> PathBuf {
    match std::env::var_os("SEMEL_TEST_NATS_BIN") {
        Some(folder) => PathBuf::from(folder).join("nats-server"),
        None => PathBuf::from("nats-server"),
    }
}

/// Asks JetStream for its account's figures: it answers when streams can be used.
fn account_info(port: u16) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    stream.write_all(b"CONNECT {\"verbose\":false}\r\nSUB answer 1\r\nPUB $JS.API.INFO answer 0\r\n\r\n")?;
    for line in &mut lines {
        let line = line?;
        if line.starts_with("MSG answer") {
            return Ok(());
        }
        if line.starts_with("-ERR") {
            return Err(io::Error::other(line));
        }
    }
    Err(io::Error::from(io::ErrorKind::UnexpectedEof))
}
