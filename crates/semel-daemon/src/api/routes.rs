//! Every operation with its path, what it takes and what it may answer: the dispatcher goes by this table, and the OpenAPI
//! document is made from it.

use super::access::Operation;
use super::problem::Kind;

/// Where the OpenAPI document is served.
pub(crate) const OPENAPI: &str = "/v1/openapi.json";

/// The operations by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// `issue`
    Issue,
    /// `claim`
    Claim,
    /// `claim_many`
    ClaimMany,
    /// `extend`
    Extend,
    /// `complete`
    Complete,
    /// `complete_many`
    CompleteMany,
    /// `release`
    Release,
    /// `abandon`
    Abandon,
    /// `read`
    Read,
    /// `wait`
    Wait,
    /// `list`
    List,
    /// `settle`
    Settle,
    /// `close_scope`
    CloseScope,
}

/// One route. All are `POST` with a JSON body: keys are bytes, and stay out of addresses and access logs.
#[derive(Debug)]
pub(crate) struct Route {
    /// Which operation.
    pub(crate) name: Name,
    /// Its id in the document and in metrics.
    pub(crate) id: &'static str,
    /// Where it is.
    pub(crate) path: &'static str,
    /// What a token must allow.
    pub(crate) operation: Operation,
    /// In a line.
    pub(crate) summary: &'static str,
    /// In more lines.
    pub(crate) about: &'static str,
    /// The name of the body's schema, and an example of it.
    pub(crate) body: &'static str,
    /// An example of the body.
    pub(crate) example: &'static str,
    /// Statuses of success, each with its schema and what it means.
    pub(crate) answers: &'static [(u16, &'static str, &'static str)],
    /// Problems beside [`Kind::COMMON`].
    pub(crate) problems: &'static [Kind],
}

/// All of them.
pub(crate) const ROUTES: &[Route] = &[
    Route {
        name: Name::Issue,
        id: "issue",
        path: "/v1/keys/issue",
        operation: Operation::Issue,
        summary: "Have an id made, for a form that a browser may send twice",
        about: "Unguessable, for this scope and principal only, and good for `good_ms`. Put it into the form; when the form \
                comes, claim it with the same `principal`: an id that was made up, or issued to somebody else, is refused. \
                Nothing is stored until it is claimed. Only where `[api]` has an `issue_secret`.",
        body: "Issue",
        example: r#"{"scope": "orders", "principal": "user-4"}"#,
        answers: &[(
            201,
            "Issued",
            "The id, and until when it may be used for the first time.",
        )],
        problems: &[Kind::NoSuchOperation],
    },
    Route {
        name: Name::Claim,
        id: "claim",
        path: "/v1/keys/claim",
        operation: Operation::Claim,
        summary: "Ask for the right to run a key",
        about: "201 gives the right to run it: a fencing token and a nonce for every later call, until the lease ends. 200 is \
                what came of it earlier. With `wait_ms` the answer comes when the first owner's run has ended. Choose the \
                nonce yourself (128 random bits, fresh for each attempt), and an answer that is lost can be asked for \
                again with the same request.",
        body: "Claim",
        example: r#"{"scope": "orders", "id": "o-7", "input": "2 teapots", "nonce": "5f6d0b7c3a1e4d2f9b8a7c6d5e4f3a2b"}"#,
        answers: &[
            (
                201,
                "Granted",
                "Run it; complete, release or abandon it before the lease ends, or extend it.",
            ),
            (200, "Finished", "It is done; here is what came of it."),
        ],
        problems: CLAIM,
    },
    Route {
        name: Name::ClaimMany,
        id: "claim_many",
        path: "/v1/keys/claim_many",
        operation: Operation::Claim,
        summary: "Ask for the right to run several keys",
        about: "Each item is answered for itself, in the order asked; one that is refused never fails its neighbours. A body \
                that cannot be read, or a scope that is not the token's, refuses all of them.",
        body: "ClaimMany",
        example: r#"{"claims": [{"scope": "orders", "id": "o-7", "input": "2 teapots"}]}"#,
        answers: &[(200, "ClaimReplies", "What `claim` would have answered to each.")],
        problems: &[Kind::NotIssued, Kind::OutputLeftOut],
    },
    Route {
        name: Name::Extend,
        id: "extend",
        path: "/v1/keys/extend",
        operation: Operation::Extend,
        summary: "Keep a claim longer",
        about: "The lease ends `lease_ms` from now, and never earlier than before. A claim that was extended is not granted \
                again to its own nonce.",
        body: "Extend",
        example: r#"{"scope": "orders", "id": "o-7", "token": 12, "nonce": "5f6d0b7c3a1e4d2f9b8a7c6d5e4f3a2b"}"#,
        answers: &[(200, "Until", "When the lease ends now.")],
        problems: &[Kind::LeaseLost],
    },
    Route {
        name: Name::Complete,
        id: "complete",
        path: "/v1/keys/complete",
        operation: Operation::Complete,
        summary: "Store what came of a run",
        about: "Every later claim gets this outcome. Repeating the same completion is fine; another outcome is refused. Also \
                accepted late, as long as nobody else was granted the key or settled it.",
        body: "Complete",
        example: r#"{"scope": "orders", "id": "o-7", "token": 12, "nonce": "5f6d0b7c3a1e4d2f9b8a7c6d5e4f3a2b", "outcome": "succeeded", "output": "{\"order\": 7}"}"#,
        answers: &[(200, "RetainUntil", "Until when the outcome is kept.")],
        problems: &[Kind::LeaseLost, Kind::Conflict],
    },
    Route {
        name: Name::CompleteMany,
        id: "complete_many",
        path: "/v1/keys/complete_many",
        operation: Operation::Complete,
        summary: "Store what came of several runs",
        about: "Each item is answered for itself, in the order asked.",
        body: "CompleteMany",
        example: r#"{"completions": [{"scope": "orders", "id": "o-7", "token": 12, "nonce": "5f6d0b7c3a1e4d2f9b8a7c6d5e4f3a2b", "outcome": "succeeded"}]}"#,
        answers: &[(
            200,
            "CompleteReplies",
            "What `complete` would have answered to each.",
        )],
        problems: &[],
    },
    Route {
        name: Name::Release,
        id: "release",
        path: "/v1/keys/release",
        operation: Operation::Release,
        summary: "Give a claim back, because it is certain that nothing happened",
        about: "The key is free for the next claim. Without a token it withdraws a claim whose answer never came: should that \
                claim still be on its way, it is not granted. Either way the nonce is spent.",
        body: "Release",
        example: r#"{"scope": "orders", "id": "o-7", "nonce": "5f6d0b7c3a1e4d2f9b8a7c6d5e4f3a2b"}"#,
        answers: &[(200, "At", "When it was released.")],
        problems: &[Kind::LeaseLost, Kind::Conflict],
    },
    Route {
        name: Name::Abandon,
        id: "abandon",
        path: "/v1/keys/abandon",
        operation: Operation::Abandon,
        summary: "End a run of which you do not know what came",
        about: "The key is unknown at once instead of when its lease ends (`rerun`: free for the next claim). A late \
                `complete` with the same token is still accepted.",
        body: "Abandon",
        example: r#"{"scope": "orders", "id": "o-7", "token": 12, "nonce": "5f6d0b7c3a1e4d2f9b8a7c6d5e4f3a2b"}"#,
        answers: &[(200, "At", "When it was abandoned.")],
        problems: &[Kind::LeaseLost, Kind::Conflict],
    },
    Route {
        name: Name::Read,
        id: "read",
        path: "/v1/keys/read",
        operation: Operation::Read,
        summary: "Look at one key",
        about: "Changes nothing. The nonce of a claim is never shown.",
        body: "KeyName",
        example: r#"{"scope": "orders", "id": "o-7"}"#,
        answers: &[(200, "Record", "How it stands, by the store's time.")],
        problems: &[Kind::Absent],
    },
    Route {
        name: Name::Wait,
        id: "wait",
        path: "/v1/keys/wait",
        operation: Operation::Wait,
        summary: "Wait for the end of a key's run",
        about: "Answers as soon as nobody runs the key (done, unknown, or absent after a release), at the latest after \
                `wait_ms` or `wait_ms_max` of [api], then with `claimed`. Changes nothing.",
        body: "Wait",
        example: r#"{"scope": "orders", "id": "o-7", "wait_ms": 30000}"#,
        answers: &[(200, "Record", "How it stands, by the store's time.")],
        problems: &[Kind::Absent],
    },
    Route {
        name: Name::List,
        id: "list",
        path: "/v1/keys/list",
        operation: Operation::List,
        summary: "Look at many keys, page by page",
        about: "In the store's own order, without outputs. A page may hold fewer than asked, even none, and not be the last: \
                go on while there is `next`.",
        body: "List",
        example: r#"{"scope": "orders", "state": "unknown", "limit": 100}"#,
        answers: &[(200, "Page", "Some keys, and where the next page begins.")],
        problems: &[],
    },
    Route {
        name: Name::Settle,
        id: "settle",
        path: "/v1/keys/settle",
        operation: Operation::Settle,
        summary: "Say what came of an unknown key",
        about: "`succeeded`, `refused` and `forgotten` store that outcome; `did_not_happen` frees the key, so only send it \
                when it is certain. Only the run of this token is judged. Who and why are logged.",
        body: "Settle",
        example: r#"{"scope": "orders", "id": "o-7", "token": 12, "verdict": "succeeded", "by": "ann", "why": "found at the bank"}"#,
        answers: &[(
            200,
            "Settled",
            "Until when the outcome is kept, or when the key was freed.",
        )],
        problems: &[Kind::LeaseLost, Kind::Conflict],
    },
    Route {
        name: Name::CloseScope,
        id: "close_scope",
        path: "/v1/keys/close_scope",
        operation: Operation::Close,
        summary: "Leave only tombstones of a scope, because its principal is gone",
        about: "For the day on which an account is deleted whose name may be given out again: whoever uses one of its keys \
                then is told that it was done, and never gets what came of it. One request closes at most `limit` keys: go \
                on while there is `next`, and begin again until a whole pass has `closed` and `changed` nothing. Take the \
                account's access away first. What runs may not store its outcome any more. Who and why are logged.",
        body: "CloseScope",
        example: r#"{"scope": "orders/user-4", "by": "ann", "why": "account deleted"}"#,
        answers: &[(
            200,
            "ScopeClosed",
            "How many keys were closed, and where the next request begins.",
        )],
        problems: &[],
    },
];

/// Problems of a claim.
pub(crate) const CLAIM: &[Kind] = &[
    Kind::Running,
    Kind::Unknown,
    Kind::Withdrawn,
    Kind::Gone,
    Kind::Mismatch,
    Kind::NotIssued,
    Kind::Full,
];

/// The route at a path.
pub(crate) fn find(path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.path == path)
}

impl Route {
    /// Whether the document says that this route may answer so.
    pub(crate) fn answers_with(&self, kind: Kind) -> bool {
        Kind::COMMON.contains(&kind) || self.problems.contains(&kind)
    }
}
