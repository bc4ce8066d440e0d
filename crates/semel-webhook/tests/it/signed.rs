//! What a receiver finds of a signature: in Rust, and by the Python of the documentation.

use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use semel_core::signature::{self, Secret, TOLERANCE_S};
use semel_core::{Clock as _, SystemClock};
use semel_webhook::{WebhookConfig, WebhookSink};

use super::{LONG, send, serve};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

#[tokio::test]
async fn every_attempt_is_signed_by_both_secrets_under_one_id() {
    let seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>> = Arc::default();
    let kept = Arc::clone(&seen);
    let receive = async move |headers: HeaderMap, body: Bytes| {
        let mut kept = kept.lock().unwrap();
        kept.push((headers, body));
        if kept.len() == 1 {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::OK
        }
    };
    let url = serve(Router::new().route("/in", post(receive))).await;
    let sink = WebhookSink::new(WebhookConfig {
        secrets: vec![OLD.to_owned(), NEW.to_owned()],
        ..WebhookConfig::new(format!("{url}/in"))
    })
    .unwrap();
    send(&sink, LONG).await.unwrap_err();
    send(&sink, LONG).await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].0["webhook-id"], seen[1].0["webhook-id"]);
    for (headers, body) in &*seen {
        let text = |name: &str| headers[name].to_str().unwrap();
        assert_eq!(text("idempotency-key"), format!("\"{}\"", text("webhook-id")));
        for secret in [OLD, NEW] {
            signature::verify(
                &[Secret::parse(secret).unwrap()],
                text("webhook-id"),
                text("webhook-timestamp"),
                text("webhook-signature"),
                body,
                SystemClock.now(),
                TOLERANCE_S,
            )
            .unwrap();
        }
    }
}

/// The function of `docs/events.md`, asked what the vectors of the standard's own libraries say.
#[test]
fn the_python_of_the_documentation_agrees_with_the_known_vector() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.md");
    let page = std::fs::read_to_string(page).unwrap();
    let code = page
        .split("```python\n")
        .map(|rest| rest.split("```").next().unwrap())
        .find(|code| code.contains("def verify"))
        .unwrap();
    let asks = r#"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
good = {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}
body, now = b'{"test": 2432232314}', 1614265330
assert verify([OTHER, SECRET], good, body, now) == "msg_p5jXN8AQM9LWM0D4loKWxJek"
assert verify([SECRET], good, body, now + 300) == "msg_p5jXN8AQM9LWM0D4loKWxJek"
for secrets, headers, sent, at in [
    ([OTHER], good, body, now),
    ([SECRET], good, body + b" ", now),
    ([SECRET], good | {"webhook-id": "another"}, body, now),
    ([SECRET], good | {"webhook-signature": ""}, body, now),
    ([SECRET], good, body, now + 301),
    ([SECRET], good, body, now - 301),
]:
    try:
        verify(secrets, headers, sent, at)
    except ValueError:
        continue
    raise SystemExit(f"taken: {headers} {at}")
"#;
    let output = Command::new("python3")
        .args(["-c", &format!("{code}{asks}")])
        .output()
        .expect("python3 is not installed: apt-get install python3");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
