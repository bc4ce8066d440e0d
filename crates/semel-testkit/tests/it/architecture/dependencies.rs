//! What may depend on what.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::files::{none, root};

const PATTERNS: &[&str] = &[
    "semel-http",
    "semel-http-client",
    "semel-keys",
    "semel-outbox",
    "semel-inbox",
    "semel-saga",
];
const BACKENDS: &[&str] = &[
    "semel-sqlite",
    "semel-postgres",
    "semel-mysql",
    "semel-redis",
    "semel-kafka",
    "semel-webhook",
    "semel-rabbitmq",
    "semel-nats",
];
const DRIVERS: &[&str] = &[
    "sqlx",
    "sqlx-core",
    "redis",
    "libsqlite3-sys",
    "rdkafka",
    "rdkafka-sys",
    "lapin",
    "async-nats",
];
const IO: &[&str] = &["tokio", "mio", "socket2", "hyper", "axum", "tower", "rustls"];

/// What the rules below would find, and why it may be.
const EXCEPTIONS: &[(&str, &str)] = &[(
    "semel-kafka reaches semel-inbox",
    "its consumer is the engine of the inbox with another source",
)];

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--locked", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn metadata() -> Value {
    serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--all-features"])).unwrap()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn members(metadata: &Value) -> Vec<&Value> {
    let ids: BTreeSet<&str> = list(&metadata["workspace_members"]).map(text).collect();
    list(&metadata["packages"])
        .filter(|package| ids.contains(text(&package["id"])))
        .collect()
}

/// All packages that a build of this one alone, with all its features, pulls in.
fn reach(package: &str) -> BTreeSet<String> {
    reach_with(package, "--all-features")
}

fn reach_with(package: &str, features: &str) -> BTreeSet<String> {
    let tree = cargo(&[
        "tree",
        "--package",
        package,
        features,
        "--edges=normal,build",
        "--target=all",
        "--prefix=none",
        "--format={p}",
    ]);
    let names = tree.lines().skip(1).filter_map(|line| line.split(' ').next());
    names.map(ToOwned::to_owned).collect()
}

/// `a reaches b` for every forbidden pair, exceptions left out.
fn reaches(from: &[&str], forbidden: &[&[&str]]) -> Vec<String> {
    let mut found = Vec::new();
    for package in from {
        let reach = reach(package);
        let bad = forbidden
            .iter()
            .copied()
            .flatten()
            .filter(|name| reach.contains(**name));
        found.extend(bad.map(|name| format!("{package} reaches {name}")));
    }
    found.retain(|finding| EXCEPTIONS.iter().all(|(exception, _)| exception != finding));
    found
}

#[test]
fn the_core_does_no_io() {
    let found = reaches(&["semel-core"], &[DRIVERS, IO, PATTERNS, BACKENDS]);
    none("semel-core is pure (ARCHITECTURE.md)", &found);
}

#[test]
fn patterns_know_no_backend_and_backends_know_no_pattern() {
    let mut found = reaches(PATTERNS, &[BACKENDS, DRIVERS]);
    found.extend(reaches(BACKENDS, &[PATTERNS]));
    none(
        "patterns and backends meet in the traits of semel-core only",
        &found,
    );
}

#[test]
fn backends_know_only_their_own_server() {
    let mut found = reaches(&["semel-sqlite"], &[&["sqlx-postgres", "rdkafka-sys"]]);
    found.extend(reaches(
        &["semel-postgres"],
        &[&["libsqlite3-sys", "rdkafka-sys"]],
    ));
    found.extend(reaches(&["semel-kafka"], &[&["sqlx-core"]]));
    found.extend(reaches(&["semel-webhook"], &[DRIVERS]));
    found.extend(reaches(
        &["semel-rabbitmq"],
        &[&["sqlx-core", "rdkafka-sys", "async-nats"]],
    ));
    found.extend(reaches(
        &["semel-nats"],
        &[&["sqlx-core", "rdkafka-sys", "lapin"]],
    ));
    none("a user of one backend builds no other", &found);
}

#[test]
fn openssl_is_for_those_who_ask_for_kafka_over_tls() {
    let found: Vec<String> = ["semel", "semel-daemon"]
        .iter()
        .filter(|package| {
            let plain = reach_with(package, "--features=kafka");
            assert!(plain.contains("rdkafka-sys"), "{plain:?}");
            plain.contains("openssl-sys")
        })
        .map(|package| format!("{package} with the feature kafka reaches openssl-sys"))
        .collect();
    none("only the feature kafka-tls needs OpenSSL", &found);
    assert!(reach_with("semel-daemon", "--features=kafka-tls").contains("openssl-sys"));
}

#[test]
fn nothing_that_ships_needs_the_testkit_or_the_daemon() {
    let metadata = metadata();
    let names = members(&metadata)
        .into_iter()
        .map(|package| text(&package["name"]));
    let libraries: Vec<&str> = names
        .filter(|name| !["semel-benches", "semel-testkit", "semel-daemon"].contains(name))
        .collect();
    let mut found = reaches(&libraries, &[&["semel-testkit", "semel-daemon"]]);
    found.extend(reaches(&["semel-daemon"], &[&["semel-testkit"]]));
    none(
        "the testkit is for tests, the daemon is the end of the line",
        &found,
    );
}

fn deny() -> String {
    fs::read_to_string(root().join("deny.toml")).unwrap()
}

/// What deny.toml bans, with the packages that may depend on it all the same. None means that it may not be there at all.
fn bans(deny: &str) -> Vec<(&str, Vec<&str>)> {
    deny.lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once("{ crate = \"")?.1.split_once('"')?;
            let wrappers = rest
                .split_once("wrappers = [")
                .and_then(|(_, list)| list.split_once(']'))
                .map(|(list, _)| list.split('"').skip(1).step_by(2).collect());
            Some((name, wrappers.unwrap_or_default()))
        })
        .collect()
}

/// Who of a lock file depends on a banned package and is none of its wrappers; a banned package without wrappers counts
/// as soon as it is there.
fn banned(lock: &str, bans: &[(&str, Vec<&str>)]) -> Vec<String> {
    let mut found = Vec::new();
    for package in lock.split("[[package]]").skip(1) {
        let Some((name, rest)) = package
            .split_once("name = \"")
            .and_then(|(_, rest)| rest.split_once('"'))
        else {
            continue;
        };
        let dependencies = rest.split_once("dependencies = [").map_or("", |(_, list)| list);
        // `"reqwest",` or, where there are several versions, `"reqwest 0.13.5",`.
        let dependencies = dependencies
            .split('"')
            .skip(1)
            .step_by(2)
            .filter_map(|entry| entry.split(' ').next())
            .collect::<BTreeSet<_>>();
        for (ban, wrappers) in bans {
            if wrappers.is_empty() && name == *ban {
                found.push(format!("{ban}: see its reason in deny.toml"));
            }
            if !wrappers.is_empty() && dependencies.contains(ban) && !wrappers.contains(&name) {
                found.push(format!("{name} depends on {ban}: see its reason in deny.toml"));
            }
        }
    }
    found
}

#[test]
fn nothing_that_deny_toml_bans_is_in_the_lock_file() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let deny = deny();
    let bans = bans(&deny);
    assert!(
        bans.contains(&("openssl", Vec::new())) && bans.contains(&("openssl-sys", vec!["rdkafka-sys"])),
        "deny.toml is not read right"
    );
    none("banned packages in Cargo.lock", &banned(&lock, &bans));
}

#[test]
fn a_banned_package_is_for_its_wrappers_alone() {
    let deny = "deny = [\n  { crate = \"a\", reason = \"r\" },\n  { crate = \"b\", wrappers = [\"w\", \"x\"], reason = \"r\" },\n]";
    let bans = bans(deny);
    assert_eq!(bans, [("a", Vec::new()), ("b", vec!["w", "x"])]);
    let package = |name: &str, dependencies: &str| {
        format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\ndependencies = [\n{dependencies}]\n")
    };
    let good = [
        package("b", ""),
        package("w", " \"b\",\n"),
        package("y", " \"w\",\n"),
    ]
    .concat();
    assert_eq!(banned(&good, &bans), Vec::<String>::new());
    for (name, dependencies, finding) in [
        ("a", "", "a: see"),
        ("y", " \"b\",\n", "y depends on b"),
        ("y", " \"b 1.0.0\",\n \"w\",\n", "y depends on b"),
    ] {
        let found = banned(&package(name, dependencies), &bans);
        assert!(found.len() == 1 && found[0].starts_with(finding), "{found:?}");
    }
}

#[test]
fn every_package_comes_from_the_registry() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let found: Vec<String> = lock
        .lines()
        .filter(|line| line.starts_with("source = ") && !line.starts_with("source = \"registry+"))
        .map(ToOwned::to_owned)
        .collect();
    none("no git dependencies", &found);
}

#[test]
fn licences_are_those_that_deny_toml_allows() {
    let deny = deny();
    let allowed: BTreeSet<&str> = deny
        .split_once("allow = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(list, _)| list.split('"').skip(1).step_by(2).collect())
        .unwrap();
    let mut found = Vec::new();
    for package in list(&metadata()["packages"]) {
        // Of what is joined by OR one must be allowed, of what is joined by AND all.
        let licence = package["license"].as_str().unwrap_or("none").replace('/', " OR ");
        let met = licence
            .replace(['(', ')'], "")
            .split(" AND ")
            .all(|part| part.split(" OR ").any(|one| allowed.contains(one.trim())));
        if !met {
            found.push(format!("{}: {licence}", text(&package["name"])));
        }
    }
    none("licences", &found);
}

#[test]
fn every_member_has_the_same_house_rules() {
    let metadata = metadata();
    let mut found = Vec::new();
    for package in members(&metadata) {
        let name = text(&package["name"]);
        let manifest = fs::read_to_string(text(&package["manifest_path"])).unwrap();
        if !manifest.contains("[lints]\nworkspace = true") {
            found.push(format!("{name}: does not take the workspace's lints"));
        }
        if package["license"] != "MIT OR Apache-2.0" || package["edition"] != "2024" {
            found.push(format!("{name}: another licence or edition"));
        }
        if package["description"].as_str().is_none_or(str::is_empty) {
            found.push(format!("{name}: no description"));
        }
        let tests = list(&package["targets"])
            .filter(|target| list(&target["kind"]).any(|kind| kind == "test"))
            .count();
        if tests > 1 {
            found.push(format!(
                "{name}: {tests} integration test binaries; one is enough (tests/it/main.rs)"
            ));
        }
    }
    none("Cargo.toml of the members", &found);
}
