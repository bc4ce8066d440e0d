//! Apache Kafka: one node that is broker and controller.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::guard::{Guard, free_port};
use super::kafka_log::{self, KafkaRecord};
use super::{is_for_speed, kafka_wire};

/// How long a broker may take to answer. It takes four seconds when the machine has nothing else to do.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// One Kafka node.
#[derive(Debug)]
pub struct KafkaServer {
    guard: Guard,
    /// Kept to take leave of the process when it has ended; absent before the first start.
    child: Mutex<Option<Child>>,
    port: u16,
    topics: AtomicU32,
}

/// The node shared by all tests of this process; started by the first that asks.
///
/// Tests keep out of each other's way by topics, groups and transactional ids of their own.
#[must_use]
pub fn kafka() -> &'static KafkaServer {
    static SERVER: OnceLock<KafkaServer> = OnceLock::new();
    SERVER.get_or_init(KafkaServer::start)
}

impl KafkaServer {
    /// Where it keeps its data.
    #[must_use]
    pub(super) fn folder(&self) -> &Path {
        self.guard.dir()
    }

    /// Starts a node of one's own, for tests that kill it.
    ///
    /// # Panics
    /// Java or Kafka's jars are missing, or it does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_behind(None)
    }

    /// The same, for tests with a proxy: clients are told to come to this port of 127.0.0.1.
    ///
    /// # Panics
    /// As [`KafkaServer::start`].
    #[must_use]
    pub fn start_behind(advertised: Option<u16>) -> Self {
        Self::start_with(advertised, &Listeners::default())
    }

    pub(super) fn start_with(advertised: Option<u16>, more: &Listeners<'_>) -> Self {
        let root = tempfile::Builder::new()
            .prefix("semel-kafka-")
            .tempdir()
            .unwrap()
            .keep();
        let guard = Guard::new(&root);
        let (port, controller) = (free_port(), free_port());
        fs::write(
            root.join("server.properties"),
            properties(&root, port, advertised.unwrap_or(port), controller, more),
        )
        .unwrap();
        let mut server = Self {
            guard,
            child: Mutex::new(None),
            port,
            topics: AtomicU32::new(0),
        };
        server.format(&more.format);
        server.launch();
        server
    }

    fn format(&self, more: &[String]) {
        let output = java(&["-Xmx128m"])
            .args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"])
            .arg(self.properties())
            .args(more)
            .output()
            .expect("java runs (scripts/setup installs it)");
        assert!(
            output.status.success(),
            "Kafka's data folder cannot be formatted: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn launch(&mut self) {
        use std::os::unix::process::CommandExt as _;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap();
        let heap = if is_for_speed() { "-Xmx1g" } else { "-Xmx384m" };
        let child = java(&[heap])
            .arg("kafka.Kafka")
            .arg(self.properties())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            // Ctrl-C in the terminal is for the tests; the watchdog ends this one.
            .process_group(0)
            .spawn()
            .unwrap();
        self.guard.watch(i32::try_from(child.id()).unwrap());
        *self.child.lock().unwrap() = Some(child);
        self.wait("answers", |this| {
            kafka_wire::metadata(this.port, None).is_ok_and(|answer| answer.brokers > 0)
        });
    }

    fn properties(&self) -> PathBuf {
        self.guard.dir().join("server.properties")
    }

    fn log(&self) -> PathBuf {
        self.guard.dir().join("log")
    }

    /// Polls until `done`; a process that ended, or the deadline, is a panic with the log's last lines.
    fn wait(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + READY_WITHIN;
        while !done(self) {
            let ended = match self.child.lock().unwrap().as_mut() {
                Some(child) => child.try_wait().unwrap(),
                None => None,
            };
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(40)..].join("\n");
                panic!("Kafka ended ({ended:?}) or took too long before it {what}:\n{last}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The broker's port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// What clients call `bootstrap.servers`.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A new topic with a name that no other test uses; every partition has a leader.
    #[must_use]
    pub fn fresh_topic(&self, partitions: u16) -> String {
        let name = self.fresh_name("t");
        self.create_topic(&name, partitions, &[]);
        name
    }

    /// A name for a group, transactional id or topic that no other test uses.
    #[must_use]
    pub fn fresh_name(&self, prefix: &str) -> String {
        let number = self.topics.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{}-{number}", std::process::id())
    }

    /// Creates a topic with these settings, such as `("cleanup.policy", "compact")`, and waits for its leaders.
    ///
    /// # Panics
    /// The topic exists, or a setting is unknown.
    pub fn create_topic(&self, name: &str, partitions: u16, settings: &[(&str, &str)]) {
        let code = kafka_wire::create_topic(self.port, name, partitions, settings).unwrap();
        assert_eq!(code, 0, "topic {name} refused: see Kafka's protocol error codes");
        self.wait("led the topic", |this| {
            kafka_wire::metadata(this.port, Some(name))
                .is_ok_and(|answer| answer.led_partitions == usize::from(partitions))
        });
    }

    /// What lies in a topic now, partition after partition; also what no transaction has committed.
    ///
    /// # Panics
    /// There is no such topic, or a batch of it is compressed.
    #[must_use]
    pub fn records(&self, topic: &str) -> Vec<KafkaRecord> {
        let partitions = kafka_wire::metadata(self.port, Some(topic))
            .unwrap()
            .led_partitions;
        let of = |partition| kafka_log::records(self.port, topic, u16::try_from(partition).unwrap()).unwrap();
        (0..partitions).flat_map(of).collect()
    }

    /// `kill -9`. What clients were told is kept: it is in the page cache of a machine that goes on.
    pub fn kill(&self) {
        self.guard.kill();
        self.wait_for_end();
    }

    /// SIGTERM, and waits for the end: a planned restart.
    pub fn stop(&self) {
        self.guard.terminate();
        self.wait_for_end();
    }

    fn wait_for_end(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.wait().unwrap();
        }
    }

    /// SIGSTOP: connections stay open and nothing answers.
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

    /// Starts it again on the same port and data after [`KafkaServer::kill`] or [`KafkaServer::stop`]; waits until it
    /// answers.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        self.launch();
    }
}

impl Drop for KafkaServer {
    fn drop(&mut self) {
        // The data goes too, so there is nothing to be gentle for.
        if self.child.lock().is_ok_and(|child| child.is_some()) {
            self.guard.kill();
            self.wait_for_end();
        }
    }
}

/// Listeners beside the open one, with what they need.
#[derive(Default)]
pub(super) struct Listeners<'a> {
    /// Their protocols, which are their names, and ports.
    pub(super) ports: Vec<(&'static str, u16)>,
    /// More lines of `server.properties`, for a node in this folder.
    pub(super) properties: Option<&'a dyn Fn(&Path) -> String>,
    /// More arguments of the command that formats the data folder.
    pub(super) format: Vec<String>,
}

/// Any 16 bytes in base64; clusters of tests never meet.
const CLUSTER_ID: &str = "c2VtZWwtdGVzdC1rYWZrYQ";

fn properties(root: &Path, port: u16, advertised: u16, controller: u16, more: &Listeners<'_>) -> String {
    let data = root.join("data");
    let ports = more.ports.iter();
    let beside: String = ports
        .map(|(name, port)| format!(",{name}://127.0.0.1:{port}"))
        .collect();
    let protocols: String = more
        .ports
        .iter()
        .map(|(name, _)| format!(",{name}:{name}"))
        .collect();
    let lines = more.properties.map(|lines| lines(root)).unwrap_or_default();
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{beside}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{advertised}{beside}\n\
         controller.listener.names=CONTROLLER\n\
         listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT{protocols}\n\
         log.dirs={data}\n\
         auto.create.topics.enable=false\n\
         group.initial.rebalance.delay.ms=0\n\
         offsets.topic.num.partitions=4\n\
         offsets.topic.replication.factor=1\n\
         transaction.state.log.num.partitions=4\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         share.coordinator.state.topic.replication.factor=1\n\
         share.coordinator.state.topic.min.isr=1\n\
         log.cleaner.dedupe.buffer.size=4194304\n\
         num.network.threads=2\n\
         num.io.threads=4\n\
         num.recovery.threads.per.data.dir=1\n\
         {lines}",
        data = data.display()
    )
}

fn java(options: &[&str]) -> Command {
    let mut command = Command::new("java");
    if !is_for_speed() {
        command.arg("-XX:TieredStopAtLevel=1");
    }
    command
        .args(options)
        .args([
            "-XX:+UseSerialGC",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
        ])
        .arg(jars().join("*"))
        .stdin(Stdio::null());
    command
}

fn jars() -> PathBuf {
    let dir = std::env::var_os("SEMEL_TEST_KAFKA_LIB").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.servers/kafka/lib"),
        PathBuf::from,
    );
    assert!(
        dir.is_dir(),
        "Kafka's jars are not in {}: run scripts/setup, or set SEMEL_TEST_KAFKA_LIB to the folder that has them",
        dir.display()
    );
    dir
}
