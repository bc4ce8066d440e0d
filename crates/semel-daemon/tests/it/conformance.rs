//! `semel conformance http`: it passes what is right and finds what is wrong.

mod broken;
mod target;

use std::sync::Arc;

use axum::Router;
use semel_core::{KeyStore, Scope};
use semel_http::{IdempotencyLayer, ScopeError};
#[cfg(feature = "mysql")]
use semel_testkit::servers::mariadb;
#[cfg(feature = "redis")]
use semel_testkit::servers::redis;
use semel_testkit::servers::{free_port, postgres};
use serde_json::Value;

use super::daemon::{Folder, run, texts};
use broken::{Fault, behind};
use target::{Runs, counted, operations, serve};

/// The report on a target that has everything: checks by verdict and level, and the exit code.
struct Report {
    code: i32,
    checks: Vec<Value>,
}

impl Report {
    fn of(&self, verdict: &str, levels: &[&str]) -> Vec<&str> {
        let wanted = |check: &&Value| {
            check["verdict"] == verdict && levels.contains(&check["level"].as_str().unwrap())
        };
        let found = self.checks.iter().filter(wanted);
        found.map(|check| check["id"].as_str().unwrap()).collect()
    }

    fn failed(&self) -> Vec<&str> {
        self.of("failed", &["required"])
    }

    fn found(&self, id: &str) -> &Value {
        self.checks.iter().find(|check| check["id"] == id).unwrap()
    }

    /// All of a Semel service: nothing failed, nothing left out.
    fn is_clean(&self) {
        let all = ["required", "recommended", "informative"];
        let rest = [self.of("failed", &all), self.of("not checked", &all)].concat();
        let rest: Vec<_> = rest.into_iter().map(|id| self.found(id)).collect();
        assert!(rest.is_empty() && self.code == 0, "{rest:#?}");
        assert!(self.checks.len() > 25, "{}", self.checks.len());
    }
}

async fn suite(arguments: &[&str]) -> (String, String, i32) {
    let arguments: Vec<String> = ["conformance", "http"]
        .iter()
        .chain(arguments)
        .map(|argument| (*argument).to_owned())
        .collect();
    let work = move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        texts(&run(std::path::Path::new("."), &arguments))
    };
    tokio::task::spawn_blocking(work).await.unwrap()
}

async fn report(port: u16, principal_header: &str) -> Report {
    let (alice, bob) = (
        format!("{principal_header}: alice"),
        format!("{principal_header}: bob"),
    );
    let (out, err, code) = suite(&[
        &format!("http://127.0.0.1:{port}/orders"),
        "--other-path=/other",
        "--slow-path=/slow",
        "--count-path=/runs",
        "--header",
        &alice,
        "--other-principal",
        &bob,
        "--json",
    ])
    .await;
    let json: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!(json["ok"], code == 0, "{err}");
    Report {
        code,
        checks: json["checks"].as_array().unwrap().clone(),
    }
}

/// The operations behind Semel's layer.
async fn layered(store: Arc<dyn KeyStore>, change: impl FnOnce(&mut semel_http::Config)) -> Report {
    let mut config = semel_http::Config::default();
    change(&mut config);
    let scope = |request: &http::request::Parts| {
        let who = request
            .headers
            .get("authorization")
            .ok_or(ScopeError::NoPrincipal)?;
        Ok(Scope::of_parts(&[b"orders", who.as_bytes()]))
    };
    let layer = IdempotencyLayer::builder(store)
        .config(config)
        .scope(scope)
        .require_key();
    let runs = Runs::default();
    let operations = operations(&runs).layer(layer.build().unwrap());
    report(serve(counted(&runs, operations)).await, "Authorization").await
}

#[tokio::test]
async fn the_layer_on_memory_passes() {
    layered(Arc::new(semel_core::model::MemoryKeys::default()), |_| {})
        .await
        .is_clean();
}

#[tokio::test]
async fn a_layer_that_does_not_wait_and_takes_quoted_keys_only_passes() {
    let store = Arc::new(semel_core::model::MemoryKeys::default());
    let report = layered(store, |config| {
        config.wait_ms_max = 0;
        config.key_form = semel_http::key::KeyForm::Strict;
    })
    .await;
    report.is_clean();
    let retry_after = report.found("running-retry-after");
    assert!(
        retry_after["found"]
            .as_str()
            .unwrap()
            .starts_with("Retry-After: "),
        "{retry_after}"
    );
    let forms = report.found("quoted-and-bare");
    assert!(
        forms["found"]
            .as_str()
            .unwrap()
            .starts_with("bare keys are refused"),
        "{forms}"
    );
}

#[tokio::test]
async fn the_layer_on_sqlite_passes() {
    let folder = tempfile::tempdir().unwrap();
    let config = semel_sqlite::Config::new(folder.path().join("keys.db"));
    let db = semel_sqlite::Sqlite::open(config).await.unwrap();
    db.migrate().await.unwrap();
    layered(Arc::new(db), |_| {}).await.is_clean();
}

#[tokio::test]
async fn the_layer_on_postgresql_passes() {
    let config = semel_postgres::Config::new(postgres().fresh_database());
    let db = semel_postgres::Postgres::connect(config).await.unwrap();
    db.migrate().await.unwrap();
    layered(Arc::new(db), |_| {}).await.is_clean();
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn the_layer_on_mariadb_passes() {
    let config = semel_mysql::Config::new(mariadb().fresh_database());
    let db = semel_mysql::Mysql::connect(config).await.unwrap();
    db.migrate().await.unwrap();
    layered(Arc::new(db), |_| {}).await.is_clean();
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn the_layer_on_redis_passes() {
    let config = semel_redis::Config::new(redis().fresh_database());
    let store = semel_redis::Redis::connect(config).await.unwrap();
    layered(Arc::new(store), |_| {}).await.is_clean();
}

#[tokio::test]
async fn the_gateway_in_front_of_a_service_that_knows_no_keys_passes() {
    let runs = Runs::default();
    let upstream = serve(counted(&runs, operations(&runs))).await;
    let port = free_port();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:semel.db\"\n[[gateway]]\nname = \"api\"\nlisten = \"127.0.0.1:{port}\"\n\
         upstream = \"http://127.0.0.1:{upstream}\"\nprincipal_header = \"X-User\"\nkey = \"required\"\n"
    ));
    let daemon = folder.start().await;
    daemon.until_ready().await;
    report(port, "X-User").await.is_clean();
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
}

async fn hand_written(fault: Fault) -> Report {
    let runs = Runs::default();
    let operations: Router = behind(fault, operations(&runs));
    report(serve(counted(&runs, operations)).await, "Authorization").await
}

#[tokio::test]
async fn a_hand_written_layer_without_a_fault_passes_what_is_required() {
    let report = hand_written(Fault::Nothing).await;
    assert_eq!((report.failed(), report.code), (Vec::new(), 0));
    assert_eq!(
        report.of("failed", &["recommended", "informative"]),
        ["replay-marked", "problem-details"]
    );
    assert_eq!(
        report.of("not checked", &["required", "recommended", "informative"]),
        ["semel-outcome", "semel-guarantee", "window-told"]
    );
}

/// A hole of the field and the findings that name it, no others.
const FAULTS: [(Fault, &[&str]); 10] = [
    (
        Fault::NoDedup,
        &[
            "replay",
            "burst",
            "running",
            "client-gone",
            "client-half-closed",
            "broken-body",
            "other-body",
            "first-untouched",
            "key-missing",
            "key-empty",
            "key-twice",
            "key-long",
            "after-refusals",
        ],
    ),
    (
        Fault::CheckThenAct,
        &["burst", "running", "client-gone", "client-half-closed"],
    ),
    (Fault::KeyOnly, &["other-body", "other-path", "other-principal"]),
    (Fault::OtherBody, &["other-body"]),
    (
        Fault::LosesHeaders,
        &["replay-headers", "replay-header-lines", "replay-header-bytes"],
    ),
    (Fault::LastLine, &["replay-headers", "replay-header-lines"]),
    (Fault::DiesWithClient, &["client-gone", "client-half-closed"]),
    (Fault::OneLock, &["unrelated"]),
    (Fault::AnyKey, &["key-missing", "key-empty", "key-twice"]),
    (Fault::CutsKeys, &["key-long"]),
];

#[tokio::test]
async fn each_fault_is_found_and_named() {
    let reports = FAULTS.map(|(fault, _)| tokio::spawn(hand_written(fault)));
    for (report, (fault, wanted)) in reports.into_iter().zip(FAULTS) {
        let report = report.await.unwrap();
        assert_eq!((report.failed(), report.code), (wanted.to_vec(), 1), "{fault:?}");
        for id in wanted {
            assert!(!report.found(id)["fix"].as_str().unwrap().is_empty());
        }
    }
    let cookies = hand_written(Fault::KeepsCookies).await;
    assert_eq!((cookies.failed(), cookies.code), (Vec::new(), 0));
    assert_eq!(cookies.found("replay-cookies")["verdict"], "failed");
}

#[tokio::test]
async fn without_the_optional_paths_the_rest_is_checked_and_a_pipe_gets_plain_lines() {
    let runs = Runs::default();
    let port = serve(behind(Fault::Nothing, operations(&runs))).await;
    let url = format!("http://127.0.0.1:{port}");
    let (out, err, code) = suite(&[&url, "--path=/orders", "--run-pointer=/order", "--burst=5"]).await;
    assert_eq!(code, 0, "{out}{err}");
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split('\t').collect()).collect();
    assert!(lines.iter().all(|line| line.len() == 5), "{out}");
    assert!(!out.contains('\x1b'), "no colour in a pipe");
    let left_out: Vec<&str> = lines
        .iter()
        .filter(|line| line[0] == "not checked")
        .map(|line| line[2])
        .collect();
    assert_eq!(
        left_out,
        [
            "running",
            "running-retry-after",
            "unrelated",
            "client-gone",
            "client-half-closed",
            "other-path",
            "other-path-422",
            "other-principal",
            "semel-outcome",
            "semel-guarantee",
            "window-told",
        ]
    );
    assert!(
        err.contains("2 failed (0 required), 11 not checked (6 required)"),
        "{err}"
    );

    // What was not checked proves nothing: who wants a proof asks for all.
    let (out, err, code) = suite(&[&url, "--path=/orders", "--burst=5", "--all", "--json"]).await;
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["ok"]), (1, &Value::Bool(false)), "{err}");
}

/// A space behind a JSON body is the same request to a service that compares what it says.
#[tokio::test]
async fn a_body_of_ones_own_needs_another_one_that_differs_in_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let body = file("body", "{\"amount\": 1, \"to\": \"Ada\"}");
    let spaced = file("spaced", "{\"to\":\"Ada\",\"amount\":1} ");
    let other = file("other", "{\"amount\": 2, \"to\": \"Ada\"}");
    let runs = Runs::default();
    let port = serve(behind(Fault::Nothing, operations(&runs))).await;
    let url = format!("http://127.0.0.1:{port}/orders");
    let (_, err, code) = suite(&[&url, "--body", &body]).await;
    assert!(code == 2 && err.contains("--other-body"), "{code}: {err}");
    for same in [&body, &spaced] {
        let (_, err, code) = suite(&[&url, "--body", &body, "--other-body", same]).await;
        assert!(
            code == 2 && err.contains("says the same as the body"),
            "{code}: {err}"
        );
    }
    let (out, err, code) = suite(&[&url, "--body", &body, "--other-body", &other, "--burst=5"]).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("passed\trequired\tother-body\t"), "{out}");
}

#[tokio::test]
async fn what_cannot_be_tested_says_why_and_is_no_failure_of_the_target() {
    let gone = format!("http://127.0.0.1:{}/orders", free_port());
    let same = serve(Router::new().route("/orders", axum::routing::post(|| async { "thanks" }))).await;
    let same = format!("http://127.0.0.1:{same}/orders");
    let runs = Runs::default();
    let good = serve(operations(&runs)).await;
    let good = format!("http://127.0.0.1:{good}");
    for (arguments, word) in [
        (&[&*gone][..], "SEM0464"),
        (&[&*same], "got the same answer"),
        (&[&*good], "is answered 404"),
        (
            &[&*good, "--path=/orders", "--count-path=/runs"],
            "--count-path /runs",
        ),
        (&[&*good, "--path=/orders", "--run-pointer=/no"], "no such value"),
        (&[&*good, "--path=orders"], "a path begins with /"),
        (&[&*good, "--method=GET"], "does nothing that could happen twice"),
        (&["127.0.0.1:80"], "http://host:port"),
        (&[&*good, "--header=secret"], "`Name: value`"),
    ] {
        let (out, err, code) = suite(arguments).await;
        assert_eq!(code, 2, "{arguments:?}: {out}{err}");
        assert!(
            err.contains(word) && !err.contains("secret"),
            "{arguments:?}: {err}"
        );
        assert_eq!(out, "");
    }
    let (out, _, code) = suite(&[&same, "--json"]).await;
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["ok"]), (2, &Value::Bool(false)));
    assert!(json["error"].as_str().unwrap().starts_with("SEM0464"));
}
