//! What is not granted: problem details (RFC 9457), each with a stable type and a code that has a page.

use semel_core::{ErrorKind, Retry, StoreError};
use semel_keys::CloseError;
use serde_json::{Map, Value, json};

/// The kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// There is no such operation.
    NoSuchOperation,
    /// It is there, under another method.
    WrongMethod,
    /// The body is not what the operation takes.
    Unreadable,
    /// The body is over `body_bytes_max`.
    TooLarge,
    /// The body does not call itself JSON.
    NotJson,
    /// The body did not come in time.
    TooSlow,
    /// The token is missing or wrong.
    Unauthorized,
    /// The token is not for this, or the request comes from a web page.
    Forbidden,
    /// There is no such key.
    Absent,
    /// Somebody runs it now.
    Running,
    /// It may have happened.
    Unknown,
    /// The key names something else.
    Mismatch,
    /// It was done, and what came of it is forgotten.
    Gone,
    /// The nonce was given back.
    Withdrawn,
    /// A later owner, or a settlement.
    LeaseLost,
    /// The run has ended with another outcome.
    Conflict,
    /// The scope holds as much as it may.
    Full,
    /// The id was not issued here, not to this principal, or its time is over.
    NotIssued,
    /// It is done, and its output has no room in the answer.
    OutputLeftOut,
    /// The store gives no answer; nothing was done.
    Away,
    /// The store's answer was lost; it may have been done.
    ReplyLost,
    /// Too much at once.
    Overloaded,
    /// The store cannot be used as it is.
    StoreTrouble,
}

/// One line of the table.
pub(crate) struct Row {
    /// The code, which has a page.
    pub(crate) code: &'static str,
    /// The last part of the type.
    pub(crate) slug: &'static str,
    /// The status.
    pub(crate) status: u16,
    /// The title.
    pub(crate) title: &'static str,
    /// What it says of the key's operation (`Semel-Outcome`).
    pub(crate) outcome: Option<&'static str>,
    /// Members of its own.
    pub(crate) members: &'static [&'static str],
    /// Whether it carries `Retry-After`.
    pub(crate) retry_after: bool,
}

const fn row(code: &'static str, slug: &'static str, status: u16, title: &'static str) -> Row {
    Row {
        code,
        slug,
        status,
        title,
        outcome: None,
        members: &[],
        retry_after: false,
    }
}

impl Row {
    const fn outcome(self, outcome: &'static str) -> Self {
        Self {
            outcome: Some(outcome),
            ..self
        }
    }

    const fn members(self, members: &'static [&'static str]) -> Self {
        Self { members, ..self }
    }

    const fn retry_after(self) -> Self {
        Self {
            retry_after: true,
            ..self
        }
    }
}

impl Kind {
    /// What every operation may be answered with.
    pub(crate) const COMMON: [Self; 10] = [
        Self::Unreadable,
        Self::Unauthorized,
        Self::Forbidden,
        Self::TooSlow,
        Self::TooLarge,
        Self::NotJson,
        Self::StoreTrouble,
        Self::Away,
        Self::ReplyLost,
        Self::Overloaded,
    ];

    /// Code, status and so on.
    pub(crate) const fn row(self) -> Row {
        match self {
            Self::NoSuchOperation => row("SEM0700", "no-such-operation", 404, "There is no such operation"),
            Self::WrongMethod => row("SEM0700", "wrong-method", 405, "The operation has another method"),
            Self::Unreadable => {
                row("SEM0701", "request-unreadable", 400, "The request cannot be read").members(&["example"])
            }
            Self::TooSlow => row(
                "SEM0702",
                "request-too-slow",
                408,
                "The body did not come in time",
            ),
            Self::TooLarge => row("SEM0702", "request-too-large", 413, "The request is too large"),
            Self::NotJson => row("SEM0703", "not-json", 415, "The body must be JSON"),
            Self::Unauthorized => row("SEM0704", "unauthorized", 401, "A token is needed"),
            Self::Forbidden => row("SEM0705", "forbidden", 403, "This is not allowed"),
            Self::Absent => row("SEM0706", "key-absent", 404, "There is no such key"),
            Self::Running => row("SEM0707", "key-running", 409, "Somebody runs this key now")
                .outcome("running")
                .members(&["lease_left_ms"])
                .retry_after(),
            Self::Unknown => row(
                "SEM0708",
                "key-unknown",
                409,
                "It is not known whether this happened",
            )
            .outcome("unknown")
            .members(&["token"]),
            Self::Mismatch => row(
                "SEM0709",
                "key-mismatch",
                422,
                "The key was used for something else",
            )
            .outcome("mismatch"),
            Self::Gone => row(
                "SEM0710",
                "key-gone",
                410,
                "It was settled; what came of it is forgotten",
            )
            .outcome("unknown")
            .members(&["until"]),
            Self::Withdrawn => row("SEM0711", "nonce-withdrawn", 409, "This nonce was given back"),
            Self::LeaseLost => row("SEM0712", "lease-lost", 409, "The claim is not yours any more"),
            Self::Conflict => row(
                "SEM0713",
                "outcome-conflict",
                409,
                "The run has another end already",
            ),
            Self::Away => row(
                "SEM0714",
                "store-away",
                503,
                "The store gives no answer; nothing was done",
            )
            .retry_after(),
            Self::ReplyLost => row(
                "SEM0715",
                "reply-lost",
                503,
                "It is not known whether this was stored",
            )
            .members(&["nonce"])
            .retry_after(),
            Self::Overloaded => {
                row("SEM0716", "overloaded", 503, "Too much at once; nothing was done").retry_after()
            }
            Self::StoreTrouble => row(
                "SEM0717",
                "store-trouble",
                500,
                "The store cannot be used as it is",
            ),
            Self::NotIssued => row(
                "SEM0719",
                "id-not-issued",
                422,
                "The id is not one that was issued for this",
            ),
            Self::OutputLeftOut => row(
                "SEM0720",
                "output-left-out",
                413,
                "It is done; the answer has no room for its output",
            )
            .outcome("succeeded"),
            Self::Full => row("SEM0718", "scope-full", 507, "The scope holds as much as it may"),
        }
    }

    /// The stable type.
    pub(crate) fn type_uri(self) -> String {
        format!("urn:semel:problem:{}", self.row().slug)
    }
}

/// One problem on its way out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Problem {
    /// Which.
    pub(crate) kind: Kind,
    /// What happened this time, and what to do.
    pub(crate) detail: String,
    /// Members beside the standard ones.
    pub(crate) members: Map<String, Value>,
    /// Seconds, where its kind says when to come back.
    pub(crate) retry_after_s: u64,
}

impl Problem {
    /// A problem with what to do about it.
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            members: Map::new(),
            retry_after_s: 1,
        }
    }

    /// The same with a member of its own.
    pub(crate) fn with(mut self, member: &'static str, value: impl Into<Value>) -> Self {
        debug_assert!(self.kind.row().members.contains(&member), "{member}");
        self.members.insert(member.to_owned(), value.into());
        self
    }

    /// What a store's failure means for whoever asked. In our words only: what the driver said names hosts, users and
    /// statements, and is for the log.
    pub(crate) fn store(error: &StoreError) -> Self {
        let said = error.to_string();
        match (error.kind(), error.retry()) {
            // A full scope has a page of its own; any other limit is about what was sent.
            (ErrorKind::LimitExceeded, _) if error.code() != ErrorKind::LimitExceeded.code() => {
                Self::new(Kind::Full, format!("{said}; nothing was done"))
            }
            (ErrorKind::LimitExceeded, _) => Self::new(Kind::TooLarge, format!("{said}; nothing was done")),
            (_, Retry::Later) => {
                let detail = format!("{said}; nothing was done: send the same request again later");
                Self::new(Kind::Away, detail)
            }
            (_, Retry::OutcomeUnknown) => Self::reply_lost(&said),
            (_, Retry::Never) => Self::new(Kind::StoreTrouble, format!("{said}; nothing was done")),
        }
    }

    /// A closing that stopped half way.
    pub(crate) fn half_closed(error: &CloseError) -> Self {
        match error.retry() {
            Retry::Never => Self::new(Kind::StoreTrouble, error.to_string()),
            Retry::Later | Retry::OutcomeUnknown => Self::new(
                Kind::ReplyLost,
                format!("{error}: send the same request again, that is safe"),
            ),
        }
    }

    /// It may have been stored.
    pub(crate) fn reply_lost(why: &str) -> Self {
        let detail = format!(
            "{why}; it may have been stored: send the same request again, a claim with the same nonce; that is safe"
        );
        Self::new(Kind::ReplyLost, detail)
    }

    /// The body.
    pub(crate) fn body(&self) -> Value {
        let row = self.kind.row();
        let mut body = json!({
            "type": self.kind.type_uri(),
            "title": row.title,
            "status": row.status,
            "detail": self.detail,
            "code": row.code,
        });
        if let Some(members) = body.as_object_mut() {
            if let Some(outcome) = row.outcome {
                members.insert("outcome".to_owned(), outcome.into());
            }
            members.extend(self.members.clone());
        }
        body
    }
}
