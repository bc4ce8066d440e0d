//! The fields of `[[gateway]]` and of the tables inside it.

use crate::config::spec::{Section, field, required, secret};

/// `[[gateway]]`.
pub(crate) const GATEWAY: Section = Section {
    header: "[[gateway]]",
    about: "Puts Idempotency-Key in front of an upstream that knows nothing of it: [gateway.md](gateway.md). Say who \
            may share answers: `principal_header`, `auth_url` or `anonymous`. SIGHUP reads all of it again; `threads` \
            may only be raised by that, and the stores stay as they are.",
    fields: &[
        required(
            "name",
            "name",
            "how logs, metrics and `/readyz` call it; a part of the scope of its keys, so do not change it",
        ),
        required("listen", "address", "where clients connect"),
        required(
            "upstream",
            "http URL",
            "where requests go; a path is put before theirs",
        ),
        field(
            "store",
            "name of a store",
            "the one in `[store]`",
            "where its keys live",
        ),
        field(
            "threads",
            "number",
            "one per core",
            "threads that serve it, each with connections of its own",
        ),
        field(
            "tls",
            "table",
            "none: clients speak plain HTTP",
            "certificate and key for clients",
        ),
        field(
            "upstream_tls",
            "table",
            "the public roots",
            "what an https:// upstream is checked against",
        ),
        field(
            "upstream_http",
            "`\"1\"`, `\"2\"` or `\"auto\"`",
            "`\"1\"`",
            "HTTP version to the upstream; `\"2\"` without TLS by prior knowledge, `\"auto\"` by ALPN over TLS",
        ),
        field(
            "host",
            "text",
            "`\"upstream\"`",
            "the `Host` that the upstream sees: its own, `\"preserve\"` for the client's, or this name",
        ),
        field(
            "principal_header",
            "text",
            "none",
            "a header with the caller's id, set by a proxy in front that verifies it and that clients cannot pass by; keys are unique per id. With `auth_url`: the header of its answer that says so",
        ),
        field(
            "auth_url",
            "http URL",
            "none",
            "asked about every keyed request, replays too: 2xx with `principal_header` lets it in, 401 and 403 are passed on, all else is 503",
        ),
        field("auth_timeout_ms", "ms", "3000", "how long `auth_url` may take"),
        field(
            "anonymous",
            "true or false",
            "false",
            "all callers share one scope: only for callers that may see each other's answers; requests with `Authorization` are refused then",
        ),
        field(
            "route",
            "list of tables",
            "none",
            "policies of their own for some methods and paths; the first that matches counts, and what matches none meets the fields here",
        ),
        field(
            "methods",
            "list of texts",
            "`[\"POST\", \"PATCH\"]`",
            "methods whose keys count; others pass through",
        ),
        field(
            "paths",
            "list of texts",
            "`[\"/\"]`",
            "paths whose keys count, with all below them; others pass through. Compared as sent and with escapes, dots and parameters taken out",
        ),
        field(
            "key",
            "`\"optional\"`, `\"required\"` or `\"off\"`",
            "`\"optional\"`",
            "whether a request of these methods and paths may come without a key; one without passes through un-buffered",
        ),
        field(
            "key_headers",
            "list of texts",
            "none",
            "other headers that may carry the key, such as `X-Idempotency-Key`; a request whose sources name two keys is refused",
        ),
        field(
            "key_pointers",
            "list of texts",
            "none",
            "places in a JSON body that may hold the key, such as `\"/request_id\"`; bodies are then read before it is known whether there is a key",
        ),
        field(
            "key_fields",
            "list of texts",
            "none",
            "fields of a form, with files or without, that may hold the key, for browsers; bodies are then read before it is known whether there is a key",
        ),
        field(
            "issued_keys",
            "`\"off\"`, `\"accepted\"` or `\"required\"`",
            "`\"off\"`",
            "keys given out by the server: one in that form counts only for whom it was given out to, and in its time; `\"required\"`: no other key counts",
        ),
        secret(field(
            "issue_secret",
            "text, or list of texts",
            "none",
            "what issued keys are signed with, the same as `issue_secret` of the `[api]` that gives them out",
        )),
        field(
            "key_form",
            "`\"lenient\"` or `\"strict\"`",
            "`\"lenient\"`",
            "whether a key may come without quotes",
        ),
        field(
            "fingerprint",
            "`\"raw\"`, `\"json\"`, `\"form\"` or `\"multipart\"`",
            "`\"raw\"`",
            "what counts as the same body: its bytes, or what it says",
        ),
        field(
            "fingerprint_only",
            "list of texts",
            "none",
            "places in a JSON body, such as `\"/amount\"`: two bodies that say the same there are the same, whatever else they say",
        ),
        field(
            "fingerprint_except",
            "list of texts",
            "none",
            "places in a JSON body, such as `\"/sent_at\"`, that may differ between two tries of the same request",
        ),
        field(
            "outage",
            "`\"closed\"` or `\"open\"`",
            "`\"closed\"`",
            "while the store gives no answer: 503, or sent without protection, which may be twice",
        ),
        field(
            "shadow",
            "true or false",
            "false",
            "nothing is refused and nothing replayed: `semel_gateway_keys_total` counts what would have been",
        ),
        field(
            "request_bytes_max",
            "bytes",
            "1048576",
            "a keyed request with a longer body is refused with 413",
        ),
        field(
            "response_bytes_max",
            "bytes",
            "983040",
            "a longer answer reaches the first caller whole and is not kept: a retry is told that it was done",
        ),
        field(
            "lease_ms",
            "ms",
            "30000",
            "how long a crashed gateway blocks a key before `owner_lost` decides; renewed while the upstream works",
        ),
        field("retention_ms", "ms", "86400000", "how long answers are kept"),
        field(
            "tombstone_ms",
            "ms",
            "2592000000",
            "how long after that a late retry is refused instead of sent",
        ),
        field(
            "wait_ms_max",
            "ms",
            "10000",
            "how long a duplicate waits for the first one's answer before 409",
        ),
        field(
            "waiters_per_key_max",
            "number",
            "64",
            "duplicates of one key that wait at a time in this process; more get 409 at once",
        ),
        field(
            "waiters_max",
            "number",
            "4096",
            "duplicates of all keys of one route that wait at a time in this process; more get 409 at once",
        ),
        field(
            "store_ms_max",
            "ms",
            "5000",
            "how long one call to the store may take, at most 60000; then `outage` decides",
        ),
        field(
            "running_max",
            "number",
            "1024",
            "keyed requests of one route that run at a time; more get 503",
        ),
        field(
            "owner_lost",
            "`\"hold\"` or `\"rerun\"`",
            "`\"hold\"`",
            "what becomes of a key whose end nobody knows (a time-out, a broken connection, an ambiguous 5xx, a crash of the gateway): held as unknown, or sent again by the next retry; `\"rerun\"` only for an upstream that deduplicates",
        ),
        field(
            "release_on",
            "list of numbers",
            "none",
            "4xx after which the key is given back although they would be kept: for what is judged anew, such as a one-time code",
        ),
        field(
            "trust_unavailable",
            "true or false",
            "false",
            "the upstream's 501, and 503 with `Retry-After`, prove that it did nothing: the key is given back",
        ),
        field(
            "upstream_deduplicates",
            "true or false",
            "false",
            "the upstream does each `Idempotency-Key` once: after a broken connection, a time-out, 502 or 504 the same request is sent again with its key while `total_timeout_ms` lasts",
        ),
        field(
            "reconcile_url",
            "http URL",
            "none",
            "asked with GET and the key about a request whose end is not known; `Semel-Outcome: succeeded` or `refused` on its answer settles it",
        ),
        field(
            "reconcile_ms_max",
            "ms",
            "5000",
            "how long that may take, after `total_timeout_ms`",
        ),
        field(
            "connect_timeout_ms",
            "ms",
            "3000",
            "how long connecting to the upstream may take; nothing was sent then",
        ),
        field(
            "first_byte_timeout_ms",
            "ms",
            "60000",
            "how long the upstream may take to the head of its answer, from the last byte of the request that moved",
        ),
        field(
            "total_timeout_ms",
            "ms",
            "60000",
            "how long the upstream may take for a whole answer to a keyed request",
        ),
        field(
            "answer_idle_ms",
            "ms",
            "600000",
            "how long an answer to a request without a key, an event stream or a tunnel may be silent",
        ),
        field(
            "upstream_idle_ms",
            "ms",
            "2000",
            "how long an idle connection to the upstream is kept; keep it below the upstream's own",
        ),
        field(
            "upstream_idle_max",
            "number",
            "256",
            "idle connections to the upstream that each thread keeps",
        ),
        field(
            "trust_forwarded",
            "true or false",
            "false",
            "a proxy in front sets `X-Forwarded-*` and `Forwarded`: add to them instead of replacing them",
        ),
        field(
            "connections_max",
            "number",
            "16384",
            "connections of clients at a time; more wait in the system's queue",
        ),
        field(
            "streams_max",
            "number",
            "128",
            "requests at a time on one HTTP/2 connection",
        ),
        field(
            "headers_max",
            "number",
            "96",
            "fields of a request's head; more are refused with 431",
        ),
        field(
            "header_bytes_max",
            "bytes",
            "32768",
            "bytes of a request's head; more are refused with 431",
        ),
        field(
            "unkeyed_bytes_max",
            "bytes",
            "no limit",
            "a request without a key with a longer body is refused with 413",
        ),
        field(
            "head_timeout_ms",
            "ms",
            "10000",
            "how long a client may take to send a request's head, or for the TLS handshake",
        ),
        field(
            "body_idle_ms",
            "ms",
            "30000",
            "how long a client may send nothing of a body it began, or read nothing of its answer",
        ),
        field(
            "client_idle_ms",
            "ms",
            "75000",
            "how long an idle connection of a client is kept",
        ),
    ],
};

const SAME: &str = "the gateway's";

/// `[[gateway.route]]`.
pub(crate) const ROUTE: Section = Section {
    header: "[[gateway.route]]",
    about: "A policy for some methods and paths of the `[[gateway]]` above it. What is left out is as the gateway says.",
    fields: &[
        required(
            "paths",
            "list of texts",
            "each with all below it; a segment `*` stands for any one segment",
        ),
        field("methods", "list of texts", SAME, "its methods"),
        field(
            "key",
            "`\"optional\"`, `\"required\"` or `\"off\"`",
            SAME,
            "whether a key is needed, counts, or is passed through unread",
        ),
        field("principal_header", "text", SAME, "as there"),
        field("auth_url", "http URL", SAME, "as there"),
        field("auth_timeout_ms", "ms", SAME, "as there"),
        field("anonymous", "true or false", SAME, "as there"),
        field("key_headers", "list of texts", SAME, "as there"),
        field("key_pointers", "list of texts", SAME, "as there"),
        field("key_fields", "list of texts", SAME, "as there"),
        field(
            "issued_keys",
            "`\"off\"`, `\"accepted\"` or `\"required\"`",
            SAME,
            "as there",
        ),
        field("key_form", "`\"lenient\"` or `\"strict\"`", SAME, "as there"),
        field(
            "fingerprint",
            "`\"raw\"`, `\"json\"`, `\"form\"` or `\"multipart\"`",
            SAME,
            "as there",
        ),
        field("fingerprint_only", "list of texts", SAME, "as there"),
        field("fingerprint_except", "list of texts", SAME, "as there"),
        field("outage", "`\"closed\"` or `\"open\"`", SAME, "as there"),
        field("shadow", "true or false", SAME, "as there"),
        field("request_bytes_max", "bytes", SAME, "as there"),
        field("response_bytes_max", "bytes", SAME, "as there"),
        field("lease_ms", "ms", SAME, "as there"),
        field("retention_ms", "ms", SAME, "as there"),
        field("tombstone_ms", "ms", SAME, "as there"),
        field("wait_ms_max", "ms", SAME, "as there"),
        field("waiters_per_key_max", "number", SAME, "as there"),
        field("waiters_max", "number", SAME, "as there"),
        field("store_ms_max", "ms", SAME, "as there"),
        field("running_max", "number", SAME, "as there"),
        field("owner_lost", "`\"hold\"` or `\"rerun\"`", SAME, "as there"),
        field("release_on", "list of numbers", SAME, "as there"),
        field("trust_unavailable", "true or false", SAME, "as there"),
        field("upstream_deduplicates", "true or false", SAME, "as there"),
        field("reconcile_url", "http URL", SAME, "as there"),
        field("reconcile_ms_max", "ms", SAME, "as there"),
        field("first_byte_timeout_ms", "ms", SAME, "as there"),
        field("total_timeout_ms", "ms", SAME, "as there"),
        field("answer_idle_ms", "ms", SAME, "as there"),
    ],
};

/// `[gateway.tls]`.
pub(crate) const TLS: Section = Section {
    header: "[gateway.tls]",
    about: "TLS for clients, HTTP/2 and HTTP/1.1 by ALPN. SIGHUP reads the files again.",
    fields: &[
        required(
            "cert",
            "file",
            "certificate chain in PEM, the server's own first; a relative file is looked for beside the configuration file",
        ),
        required("key", "file", "its private key in PEM"),
    ],
};

/// `[gateway.upstream_tls]`.
pub(crate) const UPSTREAM_TLS: Section = Section {
    header: "[gateway.upstream_tls]",
    about: "TLS to an https:// upstream.",
    fields: &[
        field(
            "ca",
            "file",
            "the public roots",
            "PEM of the authorities that may vouch for the upstream, instead of the public ones",
        ),
        field(
            "cert",
            "file",
            "none",
            "certificate chain in PEM that this gateway shows",
        ),
        field("key", "file", "none", "its private key in PEM"),
        field(
            "server_name",
            "text",
            "the host of `upstream`",
            "the name that the upstream's certificate must have",
        ),
    ],
};
