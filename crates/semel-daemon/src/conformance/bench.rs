//! The target with what tells its runs apart.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use semel_core::{host, key::hex, wire as names};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;

use super::options::Options;
use super::wire::{Answer, Ask, Wire};

/// How a key is written in requests that are not about its form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Bare,
    Quoted,
}

/// What tells one run from another.
pub(super) type Mark = Bytes;

/// A target that can be tested.
pub(super) struct Bench {
    pub(super) options: Options,
    wire: Wire,
    pub(super) form: Form,
}

/// How a client leaves in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// Closes the connection.
    Close,
    /// Closes its side only, as a client that has sent all it had.
    HalfClose,
}

impl Bench {
    /// Tries the target: it answers, and each new key shows another run.
    ///
    /// # Errors
    /// Why it cannot be tested, with the code.
    pub(super) async fn open(options: Options) -> Result<Self, String> {
        let mut bench = Self {
            wire: Wire::new(&options),
            options,
            form: Form::Bare,
        };
        bench
            .probe()
            .await
            .map_err(|why| format!("SEM0464: this cannot be tested: {why}"))?;
        Ok(bench)
    }

    async fn probe(&mut self) -> Result<(), String> {
        let mut first = self.send(&self.ask(&self.new_key())).await?;
        if first.status.is_client_error() {
            // Strict in the draft's sense: only quoted keys are taken.
            self.form = Form::Quoted;
            first = self.send(&self.ask(&self.new_key())).await?;
        }
        let second = self.send(&self.ask(&self.new_key())).await?;
        for answer in [&first, &second] {
            if !answer.status.is_success() {
                return Err(format!(
                    "a request with a new key is answered {}: {}; see --method, --path, --body and --header",
                    answer.status,
                    excerpt(&answer.body)
                ));
            }
            self.mark(answer)?;
        }
        if self.mark(&first)? == self.mark(&second)? {
            return Err(format!(
                "two requests with different keys got the same answer ({}); the answer must hold something that is new for \
                 each run, such as a number (--run-pointer says where)",
                excerpt(&first.body)
            ));
        }
        if let Some(path) = &self.options.count_path {
            self.count()
                .await
                .map_err(|why| format!("--count-path {path}: {why}"))?;
        }
        Ok(())
    }

    /// A key that nobody has used.
    pub(super) fn new_key(&self) -> String {
        hex(&host::random_16())
    }

    /// The key's header value in the form that the target takes.
    pub(super) fn written(&self, key: &str) -> Vec<u8> {
        match self.form {
            Form::Bare => key.as_bytes().to_vec(),
            Form::Quoted => format!("\"{key}\"").into_bytes(),
        }
    }

    /// The operation with a key.
    pub(super) fn ask(&self, key: &str) -> Ask {
        self.ask_raw(vec![self.written(key)])
    }

    /// The operation with these lines of the key's header.
    pub(super) fn ask_raw(&self, keys: Vec<Vec<u8>>) -> Ask {
        Ask {
            path: self.options.path.clone(),
            keys,
            body: self.options.body.clone(),
            instead: None,
        }
    }

    /// The slow operation with a key, where there is one.
    pub(super) fn ask_slow(&self, key: &str) -> Option<Ask> {
        let path = self.options.slow_path.clone()?;
        Some(Ask {
            path,
            ..self.ask(key)
        })
    }

    fn request(&self, ask: &Ask) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(self.options.method.clone())
            .uri(&ask.path)
            .body(Full::new(ask.body.clone()))
            .map_err(|error| error.to_string())?;
        let headers = request.headers_mut();
        headers.clone_from(&self.options.headers);
        if let Some((name, value)) = &ask.instead {
            headers.insert(name, value.clone());
        }
        for key in &ask.keys {
            let value = HeaderValue::from_bytes(key).map_err(|error| error.to_string())?;
            headers.append(&self.options.key_header, value);
        }
        Ok(request)
    }

    /// Sends once.
    pub(super) async fn send(&self, ask: &Ask) -> Result<Answer, String> {
        self.wire.send(self.request(ask)?).await
    }

    /// Sends until the answer is not "still running", for as long as an answer may take.
    pub(super) async fn send_to_the_end(&self, ask: &Ask) -> Result<Answer, String> {
        let asking = async {
            let mut bare_conflicts = 0;
            loop {
                let answer = self.send(ask).await?;
                if answer.status == StatusCode::CONFLICT && !says_running(&answer) {
                    bare_conflicts += 1;
                }
                if !is_running(&answer) || bare_conflicts >= BARE_CONFLICTS_MAX {
                    return Ok(answer);
                }
                sleep(retry_after(&answer).min(Duration::from_secs(1))).await;
            }
        };
        match tokio::time::timeout(self.options.timeout, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(format!(
                "still \"running\" after {} ms (--timeout-ms)",
                self.options.timeout.as_millis()
            )),
        }
    }

    /// Sends the same request many times at once, on connections that are open already.
    pub(super) async fn burst(&self, ask: &Ask) -> Result<Vec<Result<Answer, String>>, String> {
        let connections = (0..self.options.burst).map(|_| self.wire.ready());
        let connections = try_join_all(connections).await?;
        let requests = connections
            .iter()
            .map(|_| self.request(ask))
            .collect::<Result<Vec<_>, _>>()?;
        let sends = connections
            .into_iter()
            .zip(requests)
            .map(|(ready, request)| self.wire.send_on(ready, request));
        Ok(join_all(sends).await)
    }

    /// Sends a request, leaves when its run has begun, and gives back what holds its side of the connection.
    pub(super) async fn leave(&self, ask: &Ask, leave: Leave) -> Result<Box<dyn Send>, String> {
        let before = self.count().await?;
        let mut stream = self.wire.begin(self.request(ask)?, &ask.body, usize::MAX).await?;
        self.begun(before).await?;
        match leave {
            Leave::Close => Ok(Box::new(())),
            Leave::HalfClose => {
                tokio::time::timeout(self.options.timeout, stream.shutdown())
                    .await
                    .unwrap_or_else(|late| Err(late.into()))
                    .map_err(|error| format!("cannot half-close: {error}"))?;
                Ok(Box::new(stream))
            }
        }
    }

    /// Sends a request whose body breaks off.
    pub(super) async fn break_off(&self, ask: &Ask) -> Result<(), String> {
        let stream = self
            .wire
            .begin(self.request(ask)?, &ask.body, ask.body.len() / 2)
            .await?;
        drop(stream);
        Ok(())
    }

    /// Waits until the count says that one more run has begun; where there is no count, a moment.
    pub(super) async fn begun(&self, before: Option<u64>) -> Result<(), String> {
        let Some(before) = before else {
            sleep(BEGIN).await;
            return Ok(());
        };
        let waiting = async {
            while self.count().await?.is_some_and(|now| now <= before) {
                sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        match tokio::time::timeout(self.options.timeout, waiting).await {
            Ok(begun) => begun,
            Err(_) => Err("the count does not grow when a run begins".to_owned()),
        }
    }

    /// How many runs there were, where the target counts them.
    pub(super) async fn count(&self) -> Result<Option<u64>, String> {
        let Some(path) = &self.options.count_path else {
            return Ok(None);
        };
        let mut request = Request::get(path)
            .body(Full::default())
            .map_err(|error| error.to_string())?;
        request.headers_mut().clone_from(&self.options.headers);
        let answer = self.wire.send(request).await?;
        let number = std::str::from_utf8(&answer.body)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        match number {
            Some(number) if answer.status.is_success() => Ok(Some(number)),
            _ => Err(format!(
                "answered {} {} where a number was expected",
                answer.status,
                excerpt(&answer.body)
            )),
        }
    }

    /// Runs since an earlier count.
    pub(super) async fn runs_since(&self, before: Option<u64>) -> Result<Option<u64>, String> {
        let now = self.count().await?;
        Ok(now.zip(before).map(|(now, before)| now.saturating_sub(before)))
    }

    /// What tells this answer's run from others.
    pub(super) fn mark(&self, answer: &Answer) -> Result<Mark, String> {
        let Some(pointer) = &self.options.run_pointer else {
            return Ok(answer.body.clone());
        };
        let json: Value =
            serde_json::from_slice(&answer.body).map_err(|error| format!("--run-pointer: {error}"))?;
        let value = json.pointer(pointer).filter(|value| !value.is_null());
        let value = value.ok_or_else(|| {
            format!(
                "--run-pointer {pointer}: the answer has no such value: {}",
                excerpt(&answer.body)
            )
        })?;
        Ok(value.to_string().into())
    }

    /// Whether two answers come from one run: same status, same mark.
    pub(super) fn same_run(&self, one: &Answer, other: &Answer) -> bool {
        one.status == other.status
            && matches!((self.mark(one), self.mark(other)), (Ok(one), Ok(other)) if one == other)
    }
}

/// For a run to begin, where nothing tells when it has.
const BEGIN: Duration = Duration::from_millis(150);

/// A 409 that says nothing more is asked again so often: it is "in progress" with some, "already done" with others.
const BARE_CONFLICTS_MAX: u32 = 50;

/// Whether an answer may mean that the first request is still at work.
pub(super) fn is_running(answer: &Answer) -> bool {
    says_running(answer) || (answer.status == StatusCode::CONFLICT && answer.header(names::OUTCOME).is_none())
}

fn says_running(answer: &Answer) -> bool {
    match answer.header(names::OUTCOME) {
        Some(word) => word == "running",
        None => {
            answer.status == StatusCode::TOO_EARLY
                || (answer.status == StatusCode::CONFLICT && answer.headers.contains_key(RETRY_AFTER))
        }
    }
}

fn retry_after(answer: &Answer) -> Duration {
    let seconds = answer
        .header(RETRY_AFTER.as_str())
        .and_then(|text| text.parse().ok());
    Duration::from_millis(seconds.unwrap_or(0_u64).saturating_mul(1_000).max(100))
}

/// The beginning of a body, for people.
pub(super) fn excerpt(body: &[u8]) -> String {
    const CHARACTERS: usize = 80;
    let text = String::from_utf8_lossy(body);
    let short: String = text
        .chars()
        .take(CHARACTERS)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    if text.chars().nth(CHARACTERS).is_some() {
        format!("{short}…")
    } else {
        short
    }
}
