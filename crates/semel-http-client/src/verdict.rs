//! What one attempt means. No clock, no I/O: the table of the crate's documentation as a function.

use std::time::UNIX_EPOCH;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use semel_core::{Timestamp, wire};

/// What an attempt brought.
#[derive(Debug, Clone, Copy)]
pub enum Seen<'a> {
    /// An answer's head.
    Answer(StatusCode, &'a HeaderMap),
    /// No connection could be made: nothing was sent.
    NotSent,
    /// The connection broke, or failed in another way after it was made.
    Broken,
    /// No head of an answer in the attempt's time.
    TimedOut,
}

/// Why an end is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The receiver says so (`Semel-Outcome: unknown`): it is settled by a person or a hook there, not by asking again.
    ReceiverSaysSo,
    /// An earlier attempt was still at work when this call gave up.
    StillRunning,
    /// An answer that says nothing of the operation, such as 502 or 504 of a proxy, or 500.
    Answered(StatusCode),
    /// The connection broke.
    Broken,
    /// No answer in time.
    TimedOut,
    /// The key was sent by an earlier call ([`RequestKey::first_sent`](crate::RequestKey::first_sent)) whose end is not
    /// known, and a repeat would not be keyed.
    EarlierCall,
    /// The key is older than the receiver is sure to remember it: a repeat might run again.
    WindowOver,
}

/// What an attempt means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The operation ran to its end.
    Succeeded,
    /// It is certain that this request did nothing, and it will not be otherwise next time.
    Refused {
        /// The refusal is the operation's, from the key's record: it holds for all attempts.
        settled: bool,
    },
    /// It is certain that this request did nothing; a later one may. With the milliseconds that the receiver asks for.
    Later(Option<u64>),
    /// An earlier attempt is at work, says a receiver that speaks Semel's words: it holds the key.
    Running(Option<u64>),
    /// Unknown for good.
    Unknown,
    /// It may have happened.
    Perhaps {
        /// What was seen.
        why: Why,
        /// Whether a repeat can bring more than the same again.
        again: bool,
        /// Milliseconds that the receiver asks for.
        after: Option<u64>,
    },
}

/// What an attempt means. `fresh`: no other attempt with this key can be at work. `trust_unavailable`: see
/// [`Config`](crate::Config). `now` is for `Retry-After` with a date where the answer has no `Date`.
#[must_use]
pub fn judge(seen: Seen<'_>, fresh: bool, trust_unavailable: bool, now: Timestamp) -> Verdict {
    let (status, headers) = match seen {
        Seen::Answer(status, headers) => (status, headers),
        Seen::NotSent => return Verdict::Later(None),
        Seen::Broken => {
            return Verdict::Perhaps {
                why: Why::Broken,
                again: true,
                after: None,
            };
        }
        Seen::TimedOut => {
            return Verdict::Perhaps {
                why: Why::TimedOut,
                again: true,
                after: None,
            };
        }
    };
    let after = retry_after_ms(headers, now);
    match headers.get(wire::OUTCOME).map(http::HeaderValue::as_bytes) {
        Some(b"succeeded") => Verdict::Succeeded,
        // Its record is that of another request: of the attempts before this one it says nothing.
        Some(b"mismatch") => Verdict::Refused { settled: false },
        Some(b"running") => Verdict::Running(after),
        Some(b"unknown") => Verdict::Unknown,
        Some(b"refused") => match status.as_u16() {
            425 | 429 | 500..=599 => Verdict::Later(after),
            // gRPC says it behind 200: RESOURCE_EXHAUSTED, ABORTED, INTERNAL, UNAVAILABLE.
            200 if grpc_status(headers).is_some_and(|status| matches!(status, 8 | 10 | 13 | 14)) => {
                Verdict::Later(after)
            }
            _ => Verdict::Refused {
                settled: headers.contains_key(wire::RETAINED_UNTIL)
                    || headers.contains_key(wire::IDEMPOTENT_REPLAYED),
            },
        },
        _ => by_status(status, after, fresh, trust_unavailable),
    }
}

fn grpc_status(headers: &HeaderMap) -> Option<u8> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn by_status(status: StatusCode, after: Option<u64>, fresh: bool, trust_unavailable: bool) -> Verdict {
    let perhaps = |again| Verdict::Perhaps {
        why: Why::Answered(status),
        again,
        after: None,
    };
    match status.as_u16() {
        // Not done here: to be sent to another place, by whoever trusts that place.
        307 | 308 => Verdict::Refused { settled: false },
        200..=399 => Verdict::Succeeded,
        // A time-out layer answers it while the handler may be running (rule K12).
        408 => perhaps(true),
        425 | 429 => Verdict::Later(after),
        // "In progress" in the draft, a conflict of the business elsewhere. Of a key that nobody else has sent no
        // request can be in progress. Who answers so need not hold any key.
        409 if !fresh => Verdict::Perhaps {
            why: Why::Answered(status),
            again: true,
            after,
        },
        409 if after.is_some() => Verdict::Later(after),
        501 if trust_unavailable => Verdict::Refused { settled: false },
        503 if trust_unavailable && after.is_some() => Verdict::Later(after),
        400..=499 => Verdict::Refused { settled: false },
        // 52x: proxies whose upstream broke or was late.
        502..=504 | 520..=527 | 530 | 598 | 599 => perhaps(true),
        _ => perhaps(false),
    }
}

/// `Retry-After` in milliseconds: seconds, or a date less the answer's own `Date` (the receiver's clock), else less `now`.
#[must_use]
pub fn retry_after_ms(headers: &HeaderMap, now: Timestamp) -> Option<u64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits beyond u64 are a time that no budget reaches.
        return Some(text.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(1_000));
    }
    let then = http_date(text)?;
    let now = headers
        .get(DATE)
        .and_then(|date| http_date(date.to_str().ok()?))
        .unwrap_or(now);
    Some(u64::try_from(then.ms_since(now)).unwrap_or(0))
}

fn http_date(text: &str) -> Option<Timestamp> {
    let since = httpdate::parse_http_date(text)
        .ok()?
        .duration_since(UNIX_EPOCH)
        .ok()?;
    i64::try_from(since.as_micros()).ok().map(Timestamp)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn of(status: u16, headers: &[(&'static str, &'static str)], fresh: bool) -> Verdict {
        let headers: HeaderMap = headers
            .iter()
            .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)))
            .collect();
        let seen = Seen::Answer(StatusCode::from_u16(status).unwrap(), &headers);
        judge(seen, fresh, true, Timestamp(0))
    }

    fn perhaps(status: u16, again: bool) -> Verdict {
        Verdict::Perhaps {
            why: Why::Answered(StatusCode::from_u16(status).unwrap()),
            again,
            after: None,
        }
    }

    const NO: Verdict = Verdict::Refused { settled: false };
    const SETTLED: Verdict = Verdict::Refused { settled: true };

    #[test]
    fn the_word_of_a_semel_service_goes_before_the_status() {
        for (status, word, verdict) in [
            (201, "succeeded", Verdict::Succeeded),
            (402, "succeeded", Verdict::Succeeded),
            (410, "succeeded", Verdict::Succeeded),
            (422, "refused", NO),
            (200, "refused", NO),
            (400, "refused", NO),
            (429, "refused", Verdict::Later(None)),
            (500, "refused", Verdict::Later(None)),
            (502, "refused", Verdict::Later(None)),
            (422, "mismatch", NO),
            (409, "running", Verdict::Running(None)),
            (202, "running", Verdict::Running(None)),
            (409, "unknown", Verdict::Unknown),
            (200, "unknown", Verdict::Unknown),
            (503, "unknown", Verdict::Unknown),
        ] {
            assert_eq!(
                of(status, &[("semel-outcome", word)], true),
                verdict,
                "{status} {word}"
            );
        }
    }

    #[test]
    fn a_refusal_over_grpc_is_of_the_moment_or_not_by_its_grpc_status() {
        for (status, verdict) in [
            ("3", NO),
            ("9", NO),
            ("16", NO),
            ("8", Verdict::Later(Some(1_000))),
            ("14", Verdict::Later(Some(1_000))),
        ] {
            let headers = [
                ("semel-outcome", "refused"),
                ("grpc-status", status),
                ("retry-after", "1"),
            ];
            assert_eq!(of(200, &headers, true), verdict, "{status}");
        }
    }

    #[test]
    fn a_refusal_from_the_record_is_settled() {
        for proof in [
            ("semel-retained-until", "2026-12-01T00:00:00.000000Z"),
            ("idempotent-replayed", "true"),
        ] {
            assert_eq!(of(422, &[("semel-outcome", "refused"), proof], true), SETTLED);
        }
        assert_eq!(
            of(422, &[("idempotent-replayed", "true")], true),
            NO,
            "not Semel's marker"
        );
    }

    #[test]
    fn without_the_word_the_status_decides() {
        for (status, verdict) in [
            (200, Verdict::Succeeded),
            (202, Verdict::Succeeded),
            (303, Verdict::Succeeded),
            (307, NO),
            (308, NO),
            (400, NO),
            (401, NO),
            (403, NO),
            (404, NO),
            (409, NO),
            (422, NO),
            (501, NO),
            (408, perhaps(408, true)),
            (425, Verdict::Later(None)),
            (429, Verdict::Later(None)),
            (500, perhaps(500, false)),
            (502, perhaps(502, true)),
            (503, perhaps(503, true)),
            (504, perhaps(504, true)),
            (507, perhaps(507, false)),
            (524, perhaps(524, true)),
        ] {
            assert_eq!(of(status, &[], true), verdict, "{status}");
        }
        let after = [("retry-after", "2")];
        assert_eq!(of(503, &after, true), Verdict::Later(Some(2_000)));
        assert_eq!(of(409, &after, true), Verdict::Later(Some(2_000)));
        assert_eq!(of(429, &after, true), Verdict::Later(Some(2_000)));
        assert_eq!(of(502, &after, true), perhaps(502, true));
    }

    #[test]
    fn a_409_without_a_word_is_certain_only_for_a_key_that_nobody_else_has() {
        assert_eq!(of(409, &[], true), NO);
        assert_eq!(of(409, &[], false), perhaps(409, true));
        let Verdict::Perhaps { after, again, .. } = of(409, &[("retry-after", "2")], false) else {
            panic!("no word of who holds the key");
        };
        assert_eq!((after, again), (Some(2_000), true));
    }

    #[test]
    fn a_receiver_that_is_not_trusted_refuses_nothing_by_a_5xx() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        for (status, again) in [(503, true), (501, false)] {
            let status = StatusCode::from_u16(status).unwrap();
            let verdict = judge(Seen::Answer(status, &headers), true, false, Timestamp(0));
            assert_eq!(verdict, perhaps(status.as_u16(), again));
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_by_the_receivers_clock() {
        let ms = |headers: &[(&'static str, &'static str)], now: i64| {
            let headers = headers
                .iter()
                .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)))
                .collect();
            retry_after_ms(&headers, Timestamp(now))
        };
        let date = ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT");
        let then = 784_111_777;
        for (headers, now, wanted) in [
            (&[("retry-after", "0")][..], 0, Some(0)),
            (&[("retry-after", "120")], 0, Some(120_000)),
            (&[("retry-after", "99999999999999999999999")], 0, Some(u64::MAX)),
            (&[date], then - 5, Some(5_000)),
            (&[date], then + 5, Some(0)),
            (&[date, ("date", "Sun, 06 Nov 1994 08:49:30 GMT")], 0, Some(7_000)),
            (&[("retry-after", "soon")], 0, None),
            (&[("retry-after", "-1")], 0, None),
            (&[("retry-after", "1.5")], 0, None),
            (&[("retry-after", "")], 0, None),
            (&[], 0, None),
        ] {
            assert_eq!(ms(headers, now * 1_000_000), wanted, "{headers:?}");
        }
    }
}
