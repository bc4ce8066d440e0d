//! A `semel run` of a test, in a folder of its own.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response};
use semel_client::{HttpClient, Limits};
use semel_testkit::children::Process;
use semel_testkit::servers::free_port;
use tempfile::TempDir;

/// Longer than anything takes on a busy machine; reaching it is a failed test.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The binary.
pub(crate) fn semel() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.env_remove("SEMEL_LOG").stdin(Stdio::null());
    command
}

/// Runs the binary to its end in a folder.
pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Output {
    semel().current_dir(folder).args(arguments).output().unwrap()
}

/// What a command wrote to stdout and stderr, and its exit code.
pub(crate) fn texts(output: &Output) -> (String, String, i32) {
    (
        String::from_utf8(output.stdout.clone()).unwrap(),
        String::from_utf8(output.stderr.clone()).unwrap(),
        output.status.code().unwrap(),
    )
}

/// A folder with a `semel.toml`.
pub(crate) struct Folder {
    folder: TempDir,
    /// The port that `{port}` of the configuration stands for.
    pub(crate) port: u16,
}

impl Folder {
    /// Writes the configuration after `[server] listen` on a free port.
    pub(crate) fn new(config: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("semel-it-").tempdir().unwrap();
        let port = free_port();
        let text = format!("[server]\nlisten = \"127.0.0.1:{port}\"\n{config}\n");
        std::fs::write(folder.path().join("semel.toml"), text).unwrap();
        Self { folder, port }
    }

    /// Adds to the configuration.
    pub(crate) fn append(&self, config: &str) {
        let path = self.file("semel.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text + config).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts `semel run` and waits until it listens.
    pub(crate) async fn start(&self) -> Daemon {
        let daemon = self.spawn(&[]);
        daemon.until_alive().await;
        daemon
    }

    /// Starts `semel run` with more environment.
    pub(crate) fn spawn(&self, env: &[(&str, &str)]) -> Daemon {
        let mut command = semel();
        command
            .args(["run", "-c", "semel.toml", "--log", "info,semel=debug"])
            .envs(env.iter().copied());
        self.spawn_command(command)
    }

    /// Starts `semel run` by way of other programs: the last argument before it is `$0` of a shell script.
    pub(crate) fn spawn_by(&self, way: &[&str], script: &[&str]) -> Daemon {
        let mut command = Command::new(way[0]);
        command.args(&way[1..]).args(script).arg(semel().get_program());
        self.spawn_command(command)
    }

    fn spawn_command(&self, mut command: Command) -> Daemon {
        let log = tempfile::tempfile().unwrap();
        command
            .current_dir(self.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log.try_clone().unwrap());
        let process = Process::spawn(&mut command).unwrap();
        Daemon {
            process,
            log,
            base: format!("http://127.0.0.1:{}", self.port),
            client: HttpClient::new(Limits::default()),
        }
    }
}

/// The answer to a POST from a client of its own.
pub(crate) async fn post(url: String, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Response<Bytes> {
    let request = headers.iter().fold(Request::post(url), |request, (name, value)| {
        request.header(*name, *value)
    });
    HttpClient::new(Limits::default())
        .send(request.body(body.into()).unwrap(), LIMIT)
        .await
        .unwrap()
}

/// A running `semel run`; killed when dropped.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    log: File,
    pub(crate) base: String,
    client: HttpClient,
}

impl Daemon {
    pub(crate) async fn get(&self, path: &str) -> Response<Bytes> {
        self.send(Method::GET, path, "").await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: serde_json::Value) -> Response<Bytes> {
        self.send(Method::POST, path, &body.to_string()).await.unwrap()
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: &str,
    ) -> Result<Response<Bytes>, semel_client::ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", "application/json")
            .body(Bytes::copy_from_slice(body.as_bytes()))
            .unwrap();
        self.client.send(request, LIMIT).await
    }

    /// The body of `/readyz`.
    pub(crate) async fn readyz(&self) -> serde_json::Value {
        json(&self.get("/readyz").await)
    }

    /// Waits until it answers.
    pub(crate) async fn until_alive(&self) {
        until("the daemon answers", async || {
            self.send(Method::GET, "/healthz", "").await.is_ok()
        })
        .await;
    }

    /// Waits until every part makes progress.
    pub(crate) async fn until_ready(&self) {
        until("the daemon is ready", async || {
            self.get("/readyz").await.status() == 200
        })
        .await;
    }

    /// One metric's value, by its whole name with labels.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let answer = self.get("/metrics").await;
        let text = std::str::from_utf8(answer.body()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    }

    /// SIGHUP: read the configuration again.
    pub(crate) fn hang_up(&self) {
        let id = i32::try_from(self.process.id()).unwrap();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(id).unwrap(),
            rustix::process::Signal::HUP,
        )
        .unwrap();
    }

    /// SIGTERM, and the exit code with the log.
    pub(crate) async fn stop(mut self) -> (i32, String) {
        self.process.terminate();
        self.ended().await
    }

    /// Waits for the end; the exit code and the log. Servers of this test go on meanwhile.
    pub(crate) async fn ended(&mut self) -> (i32, String) {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.process.ended() {
                return (status.code().unwrap_or(-1), self.log());
            }
            assert!(
                Instant::now() < deadline,
                "semel did not end; its log:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        let mut log = self.log.try_clone().unwrap();
        let mut bytes = Vec::new();
        // The daemon's descriptor shares the offset only when it writes at the end, which appending keeps true.
        log.rewind().unwrap();
        log.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A body as JSON.
pub(crate) fn json(answer: &Response<Bytes>) -> serde_json::Value {
    serde_json::from_slice(answer.body()).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// Waits for a state, not for a time.
pub(crate) async fn until(what: &str, state: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !state().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
