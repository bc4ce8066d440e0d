//! Redis.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::guard::{Guard, free_port};

/// One Redis server.
#[derive(Debug)]
pub struct RedisServer {
    guard: Guard,
    child: Child,
    port: u16,
    arguments: Vec<String>,
    databases: AtomicU32,
}

/// Databases of a server: a test takes one for itself.
const DATABASES: u32 = 5_000;

/// The server shared by all tests of this process; started by the first that asks. It flushes its append-only file
/// once a second.
#[must_use]
pub fn redis() -> &'static RedisServer {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    SERVER.get_or_init(|| RedisServer::start(&["--appendonly", "yes"]))
}

impl RedisServer {
    /// Starts a server of one's own with these arguments, for tests that kill it or set it up differently.
    ///
    /// # Panics
    /// Redis is not installed, or does not start.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        let root = tempfile::Builder::new()
            .prefix("semel-redis-")
            .tempdir()
            .unwrap()
            .keep();
        let mut guard = Guard::new(&root);
        let port = free_port();
        let mut arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        if arguments.iter().any(|argument| argument == "--cluster-enabled") {
            // Its own choice, the port and 10000, may be the source port of anybody's connection.
            arguments.extend(["--cluster-port".to_owned(), free_port().to_string()]);
        }
        let child = launch(&mut guard, port, &arguments);
        let server = Self {
            guard,
            child,
            port,
            arguments,
            databases: AtomicU32::new(0),
        };
        server.until_up();
        server
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The URL of database 0.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// The URL of a database that no other test of this process uses.
    ///
    /// # Panics
    /// All of them are taken.
    #[must_use]
    pub fn fresh_database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(number < DATABASES, "the server's databases are used up");
        format!("redis://127.0.0.1:{}/{number}", self.port)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.guard.kill();
        let _ = self.child.wait();
    }

    /// SIGSTOP: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.guard.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.guard.resume();
    }

    /// Starts it again on the same port and data after [`RedisServer::kill`]; waits until it answers.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        self.child = launch(&mut self.guard, self.port, &self.arguments);
        self.until_up();
    }

    /// Runs a command by `redis-cli` and gives its answer.
    ///
    /// # Panics
    /// `redis-cli` is missing or fails.
    pub fn cli(&self, arguments: &[&str]) -> String {
        self.try_cli(arguments)
            .unwrap_or_else(|output| panic!("redis-cli {arguments:?}: {output:?}"))
    }

    fn try_cli(&self, arguments: &[&str]) -> Result<String, Output> {
        let output = program("redis-cli")
            .args(["-p", &self.port.to_string()])
            .args(arguments)
            .output()
            .expect("redis-cli is not installed: apt-get install redis-tools");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(output)
        }
    }

    fn until_up(&self) {
        for _ in 0..1_000 {
            // It listens before it has loaded its data, and says so until then.
            let pong = self.try_cli(&["PING"]);
            if pong.is_ok_and(|pong| !pong.starts_with("LOADING")) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("Redis does not start: {}", self.log());
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.guard.dir().join("log")).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.guard.kill();
        let _ = self.child.wait();
    }
}

/// Redis' program, from the folder that `SEMEL_TEST_REDIS_BIN` names, or from the path.
fn program(name: &str) -> Command {
    match std::env::var_os("SEMEL_TEST_REDIS_BIN") {
        Some(folder) => Command::new(PathBuf::from(folder).join(name)),
        None => Command::new(name),
    }
}

fn launch(guard: &mut Guard, port: u16, arguments: &[String]) -> Child {
    let dir = guard.dir().to_owned();
    let log: PathBuf = dir.join("log");
    let child = program("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--databases", &DATABASES.to_string()])
        .arg("--dir")
        .arg(&dir)
        .arg("--logfile")
        .arg(&log)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("Redis is not installed: apt-get install redis-server");
    guard.watch(i32::try_from(child.id()).unwrap());
    child
}

/// A cluster of primaries without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three nodes and waits until they serve all slots.
    ///
    /// # Panics
    /// They do not find each other.
    #[must_use]
    pub fn start() -> Self {
        let node = |_| RedisServer::start(&["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]);
        let nodes: Vec<RedisServer> = (0..3).map(node).collect();
        let addresses: Vec<String> = nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        let output = program("redis-cli")
            .args(["--cluster", "create"])
            .args(&addresses)
            .args(["--cluster-yes"])
            .output()
            .unwrap();
        assert!(output.status.success(), "no cluster: {output:?}");
        for node in &nodes {
            let up = || node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
            while !up() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Self { nodes }
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The URL of the first node; a client finds the others.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.nodes[0].port())
    }
}
