//! Calls to the other services: with a time-out and three tries, as every style guide asks for.
//!
//! Why people write it so: networks fail, so any error is tried again; and what failed three times has failed.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use semel_client::{HttpClient, Limits};
use serde::Serialize;
use tokio::time::sleep;

const TIMEOUT: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// How a call failed.
#[derive(Debug, Clone)]
pub(super) enum CallError {
    /// The other service said no.
    Refused(String),
    /// No answer, or an error on the other side.
    Failed(String),
}

/// A client with retries.
#[derive(Debug, Clone)]
pub(super) struct Client(HttpClient);

impl Client {
    pub(super) fn new() -> Self {
        Self(HttpClient::new(Limits::default()))
    }

    /// Posts JSON under a key that stays the same over the tries.
    pub(super) async fn post(
        &self,
        port: u16,
        path: &str,
        key: &str,
        body: &impl Serialize,
    ) -> Result<(), CallError> {
        let mut tries = 1;
        loop {
            match self.post_once(port, path, key, body).await {
                Err(CallError::Failed(error)) if tries < TRIES => {
                    tracing::info!(path, error, "trying again");
                    tries += 1;
                    sleep(PAUSE).await;
                }
                result => return result,
            }
        }
    }

    /// One try.
    pub(super) async fn post_once(
        &self,
        port: u16,
        path: &str,
        key: &str,
        body: &impl Serialize,
    ) -> Result<(), CallError> {
        let failed = |error: &dyn std::fmt::Display| CallError::Failed(error.to_string());
        let body = serde_json::to_vec(body).map_err(|error| failed(&error))?;
        let request = Request::post(format!("http://127.0.0.1:{port}/{path}"))
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Bytes::from(body))
            .map_err(|error| failed(&error))?;
        let response = self
            .0
            .send(request, TIMEOUT)
            .await
            .map_err(|error| failed(&error))?;
        match response.status() {
            status if status.is_success() => Ok(()),
            StatusCode::CONFLICT => Err(CallError::Refused(
                String::from_utf8_lossy(response.body()).into_owned(),
            )),
            status => Err(failed(&status)),
        }
    }
}
