//! `[api]`: the key API for services that call HTTP, and who may call it.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use super::read::{At, Table};
use super::server::TOKEN_CHARS_MIN;
use super::spec::{Section, field, required, secret};
use semel_keys::{Issuer, SECRET_BYTES_MIN, Secret};

use crate::api::access::{Access, Grant, Operation, Scopes, TokenDigest};
use crate::api::{Limits, request::WAIT_MS_MAX};

/// Where it listens when the file does not say.
const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7081);
/// Bytes of a `token_file` at most.
const TOKEN_FILE_BYTES_MAX: u64 = 65_536;

/// `[api]`.
pub(crate) const API: Section = Section {
    header: "[api]",
    about: "The key API: claim, complete and the rest over HTTP and JSON, for services in any language ([api.md](api.md)).",
    fields: &[
        field(
            "listen",
            "address",
            "`127.0.0.1:7081`",
            "where it listens; anything but a loopback address needs an `[[api.token]]`",
        ),
        field(
            "store",
            "name of a store",
            "the one in `[store]`",
            "where keys live",
        ),
        field(
            "token",
            "list of tables",
            "none",
            "who may ask what; without any, everybody on this machine may do everything, web pages excepted",
        ),
        secret(field(
            "issue_secret",
            "text, or list of texts",
            "none",
            "signs the ids that `issue` gives out, at least 32 characters, best by `${NAME}`; of several the first signs and all \
             are recognised",
        )),
        field(
            "body_bytes_max",
            "bytes",
            "2097152",
            "a longer request body is refused with 413",
        ),
        field(
            "reply_bytes_max",
            "bytes",
            "8388608",
            "outputs in one answer of `claim_many`; an item whose output does not fit is told to ask for it alone (SEM0720)",
        ),
        field(
            "request_ms_max",
            "ms",
            "10000",
            "how long a body may take to arrive, and the store to answer",
        ),
        field(
            "wait_ms_max",
            "ms",
            "30000",
            "the longest that `wait_ms` waits, whatever it asks for",
        ),
        field(
            "requests_max",
            "number",
            "256",
            "requests in work at a time; more wait for a place, at most `request_ms_max`",
        ),
        field(
            "waiters_max",
            "number",
            "512",
            "requests that wait for a key at a time; more are refused with 503",
        ),
    ],
};

/// `[[api.token]]`.
pub(crate) const TOKEN: Section = Section {
    header: "[[api.token]]",
    about: "A bearer token of the key API, with the scopes and operations it is for.",
    fields: &[
        required("name", "name", "who has it, for the log"),
        secret(field(
            "token",
            "text, or list of texts",
            "this or `token_file`",
            "at least 16 characters, best by `${NAME}`; several while one is replaced by the next",
        )),
        field(
            "token_file",
            "file",
            "none",
            "a file with a token on each line, beside the configuration file unless the path is absolute; read at start and at SIGHUP",
        ),
        required(
            "scopes",
            "list of texts",
            "scopes by name, or `orders/*` for all that begin so; `*` is every scope",
        ),
        field(
            "allow",
            "list of words",
            "all but `settle` and `close`",
            "`issue`, `claim`, `extend`, `complete`, `release`, `abandon`, `read`, `wait`, `list`, `settle`, `close`",
        ),
    ],
};

/// The key API.
#[derive(Debug, Clone)]
pub(crate) struct ApiConfig {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// Its store's name.
    pub(crate) store: String,
    /// Who may ask what.
    pub(crate) access: Access,
    /// What issues ids.
    pub(crate) issuer: Option<Issuer>,
    /// How much and how long.
    pub(crate) limits: Limits,
}

/// Reads `[api]`; `folder` is where relative files are.
pub(crate) fn read(table: &Table<'_>, folder: &Path) -> Option<ApiConfig> {
    let listen = table.address("listen");
    let store = table.store();
    let tables = table.tables("token", &TOKEN);
    if let Some(At { value, span }) = &listen
        && !value.ip().is_loopback()
        && tables.is_empty()
    {
        table.mistake(
            span.clone(),
            "`listen` is reachable from other machines, and there is no [[api.token]]: anyone could claim and settle keys",
            "add [[api.token]] with name, token and scopes, or listen on 127.0.0.1",
        );
    }
    let mut tokens: Vec<(TokenDigest, Grant)> = Vec::new();
    for table in &tables {
        let (digests, grant) = token(table, folder);
        for (digest, span) in digests {
            if tokens.iter().any(|(known, _)| *known == digest) {
                let fix = "give each [[api.token]] tokens of its own";
                table.mistake(span, "this token is there already", fix);
            }
            tokens.push((digest, grant.clone()));
        }
    }
    let size = |name, max, default| {
        let number = table.number(name, 1..=max).unwrap_or(default);
        usize::try_from(number).unwrap_or(usize::MAX)
    };
    let ms = |name, range, default| Duration::from_millis(table.number(name, range).unwrap_or(default));
    if table.number("wait_ms_max", 0..=WAIT_MS_MAX) == Some(0) {
        table.idle(&["waiters_max"], "wait_ms_max = 0 lets nobody wait");
    }
    Some(ApiConfig {
        listen: listen.map_or(LISTEN_DEFAULT, |at| at.value),
        store: store?,
        access: Access::new(tokens),
        issuer: issuer(table),
        limits: Limits {
            body_bytes_max: size("body_bytes_max", 64 << 20, 2 << 20),
            reply_bytes_max: size("reply_bytes_max", 1 << 30, 8 << 20),
            request_max: ms("request_ms_max", 10..=600_000, 10_000),
            wait_max: ms("wait_ms_max", 0..=WAIT_MS_MAX, 30_000),
            requests_max: size("requests_max", 100_000, 256),
            waiters_max: size("waiters_max", 100_000, 512),
        },
    })
}

/// Reads `issue_secret`.
pub(crate) fn issuer(table: &Table<'_>) -> Option<Issuer> {
    let mut secrets = Vec::new();
    for At { value, span } in table.texts("issue_secret")? {
        match Secret::new(value) {
            Ok(secret) => secrets.push(secret),
            Err(_) => {
                let message = format!("`issue_secret` has fewer than {SECRET_BYTES_MIN} characters");
                table.mistake(span, message, "make one with: openssl rand -hex 32");
            }
        }
    }
    match Issuer::new(secrets) {
        Ok(issuer) => Some(issuer),
        Err(limit) => {
            let secrets_are_read = limit.actual > 0;
            if secrets_are_read {
                table.mistake(table.span(), limit.to_string(), "keep the newest ones");
            }
            None
        }
    }
}

/// Reads `[[api.token]]`: the digests of its tokens, and what they grant.
fn token(table: &Table<'_>, folder: &Path) -> (Vec<(TokenDigest, Range<usize>)>, Grant) {
    let name = table.name().unwrap_or_default();
    let mut tokens = table.texts("token").unwrap_or_default();
    if let Some(file) = table.text("token_file") {
        tokens.extend(from_file(table, &file, folder));
    } else if !table.has("token") {
        table.mistake(
            table.span(),
            "this [[api.token]] has no token",
            "add token = \"${SEMEL_API_TOKEN}\", or token_file = \"…\"",
        );
    }
    if tokens.is_empty() && table.has("token") {
        let fix = "name at least one token, or leave the whole [[api.token]] out";
        table.mistake(
            table.span(),
            "`token` is empty: this [[api.token]] admits nobody",
            fix,
        );
    }
    for At { value, span } in &tokens {
        if value.chars().count() < TOKEN_CHARS_MIN {
            let message = format!("a token has fewer than {TOKEN_CHARS_MIN} characters");
            table.mistake(span.clone(), message, "make one with: openssl rand -hex 32");
        } else if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = "a token holds a character that an HTTP header cannot carry";
            table.mistake(span.clone(), message, "make one with: openssl rand -hex 32");
        }
    }
    table.require("scopes", "[\"orders/*\"]");
    let scopes = table.texts("scopes").unwrap_or_default();
    if scopes.is_empty() && table.has("scopes") {
        let fix = "name at least one, such as scopes = [\"orders/*\"]";
        table.mistake(table.span(), "`scopes` is empty: this token is for nothing", fix);
    }
    let grant = Grant {
        name,
        scopes: scopes.iter().map(|at| Scopes::parse(&at.value)).collect(),
        operations: operations(table),
    };
    let digests = tokens
        .into_iter()
        .map(|at| (TokenDigest::of(at.value.as_bytes()), at.span));
    (digests.collect(), grant)
}

fn operations(table: &Table<'_>) -> Vec<Operation> {
    let Some(words) = table.texts("allow") else {
        return Operation::DEFAULT.to_vec();
    };
    let mut operations = Vec::with_capacity(words.len());
    for At { value, span } in words {
        match Operation::ALL
            .into_iter()
            .find(|operation| operation.as_str() == value)
        {
            Some(operation) => operations.push(operation),
            None => {
                let known = Operation::ALL.map(Operation::as_str);
                let fix = match super::spec::nearest(&value, known.into_iter()) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => format!("allowed: {}", known.join(", ")),
                };
                table.mistake(span, "`allow` names no operation", fix);
            }
        }
    }
    operations
}

/// The tokens in a file, one a line.
fn from_file(table: &Table<'_>, file: &At<String>, folder: &Path) -> Vec<At<String>> {
    let path = folder.join(&file.value);
    let wrong = |message: String, fix: &str| {
        table.mistake(file.span.clone(), message, fix);
        Vec::new()
    };
    match std::fs::metadata(&path) {
        Ok(found) if !found.is_file() => {
            return wrong("`token_file` is no regular file".to_owned(), "name a file");
        }
        Ok(found) if found.len() > TOKEN_FILE_BYTES_MAX => {
            let message = format!("`token_file` has more than {TOKEN_FILE_BYTES_MAX} bytes");
            return wrong(message, "is this the right file?");
        }
        Ok(_) | Err(_) => {}
    }
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("`token_file` cannot be read: {error}");
            return wrong(message, "write a token to it: openssl rand -hex 32 > FILE");
        }
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let tokens: Vec<At<String>> = lines
        .map(|line| At {
            value: line.to_owned(),
            span: file.span.clone(),
        })
        .collect();
    if tokens.is_empty() {
        let fix = "write a token to it: openssl rand -hex 32 > FILE";
        return wrong("`token_file` holds no token".to_owned(), fix);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::super::{Config, parse};

    fn load(text: &str) -> Result<Config, String> {
        let env = |name: &str| (name == "TOKEN").then(|| "0123456789abcdef-from-env".to_owned());
        let text = format!("[store]\nurl = \"sqlite:semel.db\"\n{text}");
        parse(std::path::Path::new("semel.toml"), &text, &env).map_err(|report| report.to_string())
    }

    #[test]
    fn the_api_listens_on_this_machine_unless_there_is_a_token() {
        let api = load("[api]").unwrap().api.unwrap();
        assert_eq!(api.listen.to_string(), "127.0.0.1:7081");
        assert!(!api.access.asks());
        let open = load("[api]\nlisten = \"0.0.0.0:7081\"").unwrap_err();
        assert!(
            open.contains("no [[api.token]]: anyone could claim and settle keys")
                && open.contains("or listen on 127.0.0.1"),
            "{open}"
        );
        let token = "[[api.token]]\nname = \"shop\"\ntoken = \"${TOKEN}\"\nscopes = [\"*\"]";
        let api = load(&format!("[api]\nlisten = \"0.0.0.0:7081\"\n{token}")).unwrap();
        let grant = api
            .api
            .unwrap()
            .access
            .grant(Some(b"Bearer 0123456789abcdef-from-env"));
        assert_eq!(grant.unwrap().name, "shop");
    }

    #[test]
    fn tokens_are_replaced_one_after_the_other_and_come_from_files_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, "first-of-the-file-0\n\n  second-of-the-file \n").unwrap();
        let text = format!(
            "[api]\n[[api.token]]\nname = \"a\"\ntoken = [\"old-token-old-token\", \"${{TOKEN}}\"]\nscopes = [\"a/*\"]\n\
             [[api.token]]\nname = \"b\"\ntoken_file = \"{}\"\nscopes = [\"b\"]\nallow = [\"read\", \"settle\"]\n",
            file.display()
        );
        let access = load(&text).unwrap().api.unwrap().access;
        let name = |token: &str| {
            access
                .grant(Some(format!("Bearer {token}").as_bytes()))
                .map(|it| it.name)
        };
        for (token, wanted) in [
            ("old-token-old-token", "a"),
            ("0123456789abcdef-from-env", "a"),
            ("first-of-the-file-0", "b"),
            ("second-of-the-file", "b"),
        ] {
            assert_eq!(name(token).as_deref(), Ok(wanted));
        }
        assert!(name("third-of-the-file-0").is_err());
    }

    #[test]
    fn wrong_tokens_are_named_without_being_shown() {
        let wrong = load(
            "[api]\n[[api.token]]\nname = \"a\"\ntoken = \"short-hunter2\"\nscopes = []\nallow = [\"claims\"]\n\
             [[api.token]]\nname = \"a\"\ntoken = [\"0123456789abcdef hunter2\"]\n\
             [[api.token]]\nname = \"c\"\nscopes = [\"*\"]\ntoken_file = \"no-such-file\"\n\
             [[api.token]]\nname = \"d\"\nscopes = [\"*\"]\n\
             [[api.token]]\nname = \"e\"\nscopes = [\"*\"]\ntoken = \"same-token-same-token\"\n\
             [[api.token]]\nname = \"f\"\nscopes = [\"*\"]\ntoken = \"same-token-same-token\"\n\
             [[api.token]]\nname = \"g\"\nscopes = [\"*\"]\ntoken = []\n",
        )
        .unwrap_err();
        for wanted in [
            "fewer than 16 characters",
            "`scopes` is empty",
            "did you mean \"claim\"?",
            "an HTTP header cannot carry",
            "`scopes` is missing in [[api.token]]",
            "two [[api.token]] are called `a`",
            "`token_file` cannot be read",
            "this [[api.token]] has no token",
            "this token is there already",
            "this [[api.token]] admits nobody",
        ] {
            assert!(wrong.contains(wanted), "{wanted}\n{wrong}");
        }
        assert!(
            !wrong.contains("hunter2") && !wrong.contains("same-token"),
            "{wrong}"
        );
    }
}
