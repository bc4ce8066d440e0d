//! Why a client is not let in, where librdkafka only sees that its connection is closed, as by a broker that goes down. Asked
//! what it speaks, the broker's port tells the two apart.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// How long connecting and each answer may take. It is waited for by the thread that polls the client.
const ASK: Duration = Duration::from_secs(1);
/// `SaslHandshake`, in the version that all brokers since 1.0 speak.
const API_KEY: i16 = 17;
const API_VERSION: i16 = 1;
const CORRELATION: i32 = 1;
/// Its answers: a mechanism that the listener does not know, and a listener that knows none.
const UNSUPPORTED_MECHANISM: i16 = 33;
const ILLEGAL_STATE: i16 = 34;

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speech {
    Tls,
    /// Kafka's protocol, after who the client is.
    Sasl,
    /// Kafka's protocol.
    Plain,
}

/// A connection that held this long was no misunderstanding.
const HELD_MS: u64 = 2_000;

/// Numbers of the alerts by which a broker says that it takes no handshake like this one: certificates, versions, names.
const REFUSALS: [std::ops::RangeInclusive<u8>; 4] = [40..=51, 70..=71, 112..=112, 116..=116];

/// Why a client is not let in, where this line of librdkafka's log is about that. It may ask the broker's port what it
/// speaks: then it blocks for up to some seconds.
pub(crate) fn why_not(line: &str) -> Option<String> {
    // "[thrd:b:9092/1]: b:9092/1: Disconnected …"
    let reason = line.split_once("]: ").map_or(line, |(_, reason)| reason);
    alert(reason).or_else(|| mismatch(reason))
}

/// In TLS 1.3 a broker looks at the client's certificate when the client takes the handshake for done.
fn alert(reason: &str) -> Option<String> {
    let (_, rest) = reason.split_once("SSL alert number ")?;
    let number = rest
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse::<u8>()
        .ok()?;
    let help = "does it want a client's certificate, or another one?";
    REFUSALS
        .iter()
        .any(|range| range.contains(&number))
        .then(|| format!("the broker refuses the handshake ({help}): {reason}"))
}

/// What is wrong with the way a client comes, where a connection has hardly begun and the broker's port, asked for it,
/// answers something else than the client speaks.
fn mismatch(reason: &str) -> Option<String> {
    if !hardly_begun(reason) {
        return None;
    }
    let (own, address) = broker(reason)?;
    explain(own, ask(address)?, address)
}

/// Errors end in `(after 3ms in state UP)`. One that never came to be is none of them: there is nobody to ask.
fn hardly_begun(reason: &str) -> bool {
    let Some((ms, state)) = reason
        .rsplit_once("(after ")
        .and_then(|(_, rest)| rest.split_once("ms in state "))
    else {
        return false;
    };
    match state.split([',', ')']).next() {
        Some("UP") => ms.parse().is_ok_and(|ms: u64| ms < HELD_MS),
        Some(state) => !state.contains("CONNECT"),
        None => false,
    }
}

fn explain(own: Speech, port: Speech, address: &str) -> Option<String> {
    let text = match (own, port) {
        (Speech::Plain | Speech::Sasl, Speech::Tls) => "speaks TLS and this client does not: set `tls`",
        (Speech::Tls, Speech::Plain | Speech::Sasl) => {
            "does not speak TLS: name a port that does, or leave `tls` out"
        }
        (Speech::Plain, Speech::Sasl) => "asks who the client is: set `sasl`",
        _ => return None,
    };
    Some(format!("{address} {text}"))
}

/// How the client speaks to which broker: errors begin with `sasl_ssl://host:9092/1: `, in plain text `host:9092/1: `.
fn broker(reason: &str) -> Option<(Speech, &str)> {
    let (name, _) = reason.split_once(": ")?;
    let (protocol, name) = name.split_once("://").unwrap_or(("plaintext", name));
    let (address, _) = name.rsplit_once('/')?;
    let own = match protocol {
        "ssl" | "sasl_ssl" => Speech::Tls,
        "sasl_plaintext" => Speech::Sasl,
        _ => Speech::Plain,
    };
    Some((own, address))
}

fn ask(address: &str) -> Option<Speech> {
    let address = address.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, ASK).ok()?;
    stream.set_read_timeout(Some(ASK)).ok()?;
    stream.set_write_timeout(Some(ASK)).ok()?;
    stream.write_all(&request()).ok()?;
    let mut answer = Vec::new();
    let mut some = [0; 64];
    while judge(&answer).is_none() {
        match stream.read(&mut some) {
            Ok(0) | Err(_) => return None,
            Ok(count) => answer.extend_from_slice(&some[..count]),
        }
        if answer.len() > some.len() {
            return None;
        }
    }
    judge(&answer)
}

/// A handshake for a mechanism that there is not: it lets nobody in and is answered by every listener.
fn request() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(API_KEY.to_be_bytes());
    body.extend(API_VERSION.to_be_bytes());
    body.extend(CORRELATION.to_be_bytes());
    for text in [&b"semel"[..], b"NONE"] {
        body.extend((text.len() as i16).to_be_bytes());
        body.extend(text);
    }
    let mut message = (body.len() as i32).to_be_bytes().to_vec();
    message.extend(body);
    message
}

fn judge(answer: &[u8]) -> Option<Speech> {
    // A record of TLS: an alert, in its version 3.
    if answer.starts_with(&[0x15, 3]) {
        return Some(Speech::Tls);
    }
    let correlation = answer.get(4..8)?;
    let code = answer.get(8..10)?;
    if correlation != CORRELATION.to_be_bytes() {
        return None;
    }
    match i16::from_be_bytes([code[0], code[1]]) {
        UNSUPPORTED_MECHANISM => Some(Speech::Sasl),
        ILLEGAL_STATE => Some(Speech::Plain),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_s_name_says_how_the_client_comes() {
        for (reason, expected) in [
            (
                "127.0.0.1:9092/bootstrap: Disconnected",
                Some((Speech::Plain, "127.0.0.1:9092")),
            ),
            (
                "sasl_ssl://kafka:9093/1: closed",
                Some((Speech::Tls, "kafka:9093")),
            ),
            (
                "ssl://[::1]:9093/bootstrap: closed",
                Some((Speech::Tls, "[::1]:9093")),
            ),
            (
                "sasl_plaintext://kafka:9094/1: closed",
                Some((Speech::Sasl, "kafka:9094")),
            ),
            ("2/2 brokers are down", None),
        ] {
            assert_eq!(broker(reason), expected, "{reason}");
        }
    }

    #[test]
    fn only_a_connection_that_has_hardly_begun_is_asked_about() {
        for (reason, expected) in [
            (
                "b:1/1: Disconnected (after 9ms in state APIVERSION_QUERY, 1 identical error(s) suppressed)",
                true,
            ),
            (
                "ssl://b:1/1: SSL handshake failed: Disconnected (after 4000ms in state SSL_HANDSHAKE)",
                true,
            ),
            ("b:1/1: Send failed: Broken pipe (after 0ms in state UP)", true),
            ("b:1/1: Disconnected (after 60000ms in state UP)", false),
            (
                "b:1/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
                false,
            ),
            ("1/1 brokers are down", false),
        ] {
            assert_eq!(hardly_begun(reason), expected, "{reason}");
        }
    }

    #[test]
    fn an_alert_about_a_certificate_is_a_refusal_and_one_about_trouble_is_not() {
        let line = |number: u8| {
            format!(
                "[thrd:ssl://b:1/1]: ssl://b:1/1: Receive failed: alert: SSL alert number {number} (after 60000ms in state UP)"
            )
        };
        for (number, refused) in [(42, true), (46, true), (116, true), (0, false), (80, false)] {
            let why = why_not(&line(number));
            assert_eq!(why.is_some(), refused, "{number}: {why:?}");
        }
    }

    #[test]
    fn only_what_an_answer_shows_is_told() {
        assert_eq!(judge(&[0x15, 3, 3, 0, 2, 2, 80]), Some(Speech::Tls));
        let answer = |code: i16| [&[0, 0, 0, 10, 0, 0, 0, 1][..], &code.to_be_bytes(), &[0; 4]].concat();
        assert_eq!(judge(&answer(UNSUPPORTED_MECHANISM)), Some(Speech::Sasl));
        assert_eq!(judge(&answer(ILLEGAL_STATE)), Some(Speech::Plain));
        assert_eq!(judge(&answer(0)), None);
        assert_eq!(judge(b"HTTP/1.1 400 Bad Request"), None);
        for end in 0..10 {
            assert_eq!(judge(&answer(UNSUPPORTED_MECHANISM)[..end]), None);
        }
        assert_eq!(
            mismatch("127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed"),
            None
        );
        assert_eq!(explain(Speech::Sasl, Speech::Sasl, "b:1"), None);
        assert_eq!(explain(Speech::Sasl, Speech::Plain, "b:1"), None);
    }
}
