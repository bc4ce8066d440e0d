//! An upstream that does as it is told, byte for byte.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What it does with a request.
#[derive(Debug, Clone)]
pub(super) enum Does {
    /// Sends these bytes, with what the gateway sent along for `{hop}`, and closes.
    Sends(String),
    /// Closes without a byte.
    Closes,
    /// Sends these bytes, and then nothing.
    Hangs(&'static str),
}

/// A running upstream; its tasks end with the test's runtime.
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    accepting: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A whole answer of this status line and these header lines.
pub(super) fn answer(status: &str, headers: &[&str], body: &str) -> Does {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    Does::Sends(format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    ))
}

impl Upstream {
    /// Does with its n-th request, from 1, what `does` says.
    pub(super) async fn start(does: impl Fn(usize) -> Does + Send + 'static) -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)), does).await
    }

    pub(super) async fn at(address: SocketAddr, does: impl Fn(usize) -> Does + Send + 'static) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = Arc::clone(&seen);
        let accepting = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = read(&mut stream).await;
                if request.is_empty() {
                    continue;
                }
                let hop = request
                    .lines()
                    .find_map(|line| line.strip_prefix("semel-hop: "))
                    .unwrap_or_default()
                    .to_owned();
                let n = {
                    let mut seen = requests.lock().unwrap();
                    seen.push(request);
                    seen.len()
                };
                match does(n) {
                    Does::Sends(bytes) => {
                        let bytes = bytes.replace("{hop}", &hop);
                        stream.write_all(bytes.as_bytes()).await.unwrap();
                    }
                    Does::Closes => {}
                    Does::Hangs(bytes) => {
                        stream.write_all(bytes.as_bytes()).await.unwrap();
                        tokio::spawn(async move {
                            let _open = stream;
                            std::future::pending::<()>().await;
                        });
                    }
                }
            }
        });
        Self {
            address,
            seen,
            accepting,
        }
    }

    /// Listens no more.
    pub(super) async fn stop(mut self) {
        self.accepting.abort();
        let ended = (&mut self.accepting).await;
        assert!(ended.is_err_and(|error| error.is_cancelled()));
    }

    /// The requests so far, as they came.
    pub(super) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub(super) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// One request with its `content-length` body.
pub(super) async fn read(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return String::from_utf8(bytes).unwrap();
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return String::new(),
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}
