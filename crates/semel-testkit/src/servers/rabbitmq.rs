//! RabbitMQ, with an epmd of its own.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::guard::{Guard, free_port};

/// How long it may take to answer. It takes eight seconds when the machine has nothing else to do.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Bytes of a message's body that the server takes: little, so that tests can go beyond it.
pub const RABBITMQ_MESSAGE_BYTES_MAX: usize = 300_000;

/// One RabbitMQ node.
///
/// Erlang's port mapper would start by itself and outlive the server. So each server has one in the foreground, on a port
/// of its own and guarded like the server.
#[derive(Debug)]
pub struct RabbitmqServer {
    guard: Guard,
    child: Option<Child>,
    port: u16,
    dist_port: u16,
    epmd: Epmd,
    names: AtomicU32,
}

#[derive(Debug)]
struct Epmd {
    guard: Guard,
    child: Child,
    port: u16,
}

/// The node shared by all tests of this process; started by the first that asks.
#[must_use]
pub fn rabbitmq() -> &'static RabbitmqServer {
    static SERVER: OnceLock<RabbitmqServer> = OnceLock::new();
    SERVER.get_or_init(RabbitmqServer::start)
}

impl Epmd {
    fn start(root: &Path) -> Self {
        let folder = root.join("epmd");
        fs::create_dir(&folder).unwrap();
        let mut guard = Guard::new(&folder);
        let port = free_port();
        let child = Command::new("epmd")
            .args(["-address", "127.0.0.1", "-port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .spawn()
            .expect("RabbitMQ's Erlang is not installed: apt-get install rabbitmq-server");
        guard.watch(i32::try_from(child.id()).unwrap());
        let until = Instant::now() + READY_WITHIN;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "epmd does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { guard, child, port }
    }
}

impl Drop for Epmd {
    fn drop(&mut self) {
        self.guard.kill();
        let _ = self.child.wait();
    }
}

impl RabbitmqServer {
    /// Starts a node of one's own, for tests that kill it.
    ///
    /// # Panics
    /// RabbitMQ is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        let root = tempfile::Builder::new()
            .prefix("semel-rabbitmq-")
            .tempdir()
            .unwrap()
            .keep();
        let guard = Guard::new(&root);
        fs::write(root.join("enabled_plugins"), "[].\n").unwrap();
        let config = format!("max_message_size = {RABBITMQ_MESSAGE_BYTES_MAX}\n");
        fs::write(root.join("rabbitmq.conf"), config).unwrap();
        let mut server = Self {
            epmd: Epmd::start(&root),
            guard,
            child: None,
            port: free_port(),
            dist_port: free_port(),
            names: AtomicU32::new(0),
        };
        server.launch();
        server
    }

    fn launch(&mut self) {
        use std::os::unix::process::CommandExt as _;
        let root = self.guard.dir().to_owned();
        let log = File::options()
            .create(true)
            .append(true)
            .open(root.join("log"))
            .unwrap();
        let child = Command::new(script())
            // Its own doing: the script gives way to the server, so that the process is the server.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("HOME", &root)
            .env("RABBITMQ_BASE", &root)
            .env("RABBITMQ_MNESIA_BASE", root.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", root.join("logs"))
            .env("RABBITMQ_CONFIG_FILE", root.join("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", root.join("enabled_plugins"))
            .env("RABBITMQ_NODENAME", self.node())
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("ERL_EPMD_PORT", self.epmd.port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false +sbwt none +sbwtdcpu none +sbwtdio none",
            )
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("RabbitMQ is not installed: apt-get install rabbitmq-server");
        self.guard.watch(i32::try_from(child.id()).unwrap());
        self.child = Some(child);
        let until = Instant::now() + READY_WITHIN;
        while let Err(error) = handshake(self.port) {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            if ended.is_some() || Instant::now() > until {
                panic!(
                    "RabbitMQ ended ({ended:?}) or takes too long ({error}):\n{}",
                    self.log()
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.guard.dir().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The URL of its default virtual host.
    #[must_use]
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// A name for a queue or an exchange that no other test uses.
    #[must_use]
    pub fn fresh_name(&self, prefix: &str) -> String {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{}-{number}", std::process::id())
    }

    fn node(&self) -> String {
        format!("semel{}@localhost", self.port)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.guard.kill();
            child.wait().unwrap();
        }
    }

    /// SIGTERM, and waits for the end. After it a queue that was just declared is on disk: a node answers before, and one
    /// that is killed in between has forgotten it.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.guard.terminate();
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

    /// Starts it again on the same port and data after [`RabbitmqServer::kill`] or [`RabbitmqServer::stop`]; waits until it answers.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        self.launch();
    }
}

impl Drop for RabbitmqServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The default virtual host at a port of this machine.
fn url(port: u16) -> String {
    format!("amqp://guest:guest@127.0.0.1:{port}/%2f")
}

/// Its start script: the one on the path changes the user and starts a second process.
fn script() -> PathBuf {
    let folder = std::env::var_os("SEMEL_TEST_RABBITMQ_BIN")
        .map_or_else(|| PathBuf::from("/usr/lib/rabbitmq/bin"), PathBuf::from);
    let script = folder.join("rabbitmq-server");
    assert!(
        script.exists(),
        "{} is missing: apt-get install rabbitmq-server, or set SEMEL_TEST_RABBITMQ_BIN",
        script.display()
    );
    script
}

/// Opens a connection as guest, up to the virtual host: all that is up only when the server is.
fn handshake(port: u16) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"AMQP\0\0\x09\x01")?;
    expect(&mut stream, 10)?;
    // start-ok: no properties, PLAIN, guest's name and password, a locale.
    let mut start_ok = vec![0, 0, 0, 0, 5];
    start_ok.extend_from_slice(b"PLAIN\0\0\0\x0c\0guest\0guest\x05en_US");
    send(&mut stream, 11, &start_ok)?;
    expect(&mut stream, 30)?;
    // tune-ok: channels, bytes of a frame, no heartbeats.
    send(&mut stream, 31, &[0, 1, 0, 1, 0, 0, 0, 0])?;
    send(&mut stream, 40, b"\x01/\0\0")?;
    expect(&mut stream, 41)
}

/// One method of the class `connection` on channel 0.
fn send(stream: &mut TcpStream, method: u16, arguments: &[u8]) -> io::Result<()> {
    let size = u32::try_from(arguments.len() + 4).unwrap();
    let mut frame = vec![1, 0, 0];
    frame.extend(size.to_be_bytes());
    frame.extend([0, 10]);
    frame.extend(method.to_be_bytes());
    frame.extend_from_slice(arguments);
    frame.push(0xce);
    stream.write_all(&frame)
}

fn expect(stream: &mut TcpStream, method: u16) -> io::Result<()> {
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
    let mut body = vec![0; size + 1];
    stream.read_exact(&mut body)?;
    let found = u16::from_be_bytes([body[2], body[3]]);
    if found == method {
        Ok(())
    } else {
        Err(io::Error::other(format!("method {found} instead of {method}")))
    }
}
