//! What PyPI has for us: schemathesis attacks the key API by its own document, and the examples in Python run as a reader
//! would run them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use semel_testkit::children::Process;
use semel_testkit::servers::{free_port, postgres};

use super::daemon::{Daemon, Folder, LIMIT, until};

const REQUIREMENTS: &str = include_str!("../python-requirements.txt");

/// One folder with everything of the requirements, made when it is first needed and kept in the target folder.
fn venv() -> &'static Path {
    static VENV: OnceLock<PathBuf> = OnceLock::new();
    VENV.get_or_init(|| {
        let version = command_output(Command::new("python3").arg("--version"));
        let name = semel_core::key::hex(&semel_core::key::derive(&[
            REQUIREMENTS.as_bytes(),
            version.as_bytes(),
        ]));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{}", &name[..16]));
        std::fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // Other test processes wait for the first one.
        let lock = File::create(folder.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        let ready = folder.join("ready");
        if !ready.exists() {
            command_output(
                Command::new("python3")
                    .args(["-m", "venv", "--clear"])
                    .arg(&folder),
            );
            let requirements = folder.join("requirements.txt");
            std::fs::write(&requirements, REQUIREMENTS).unwrap();
            let mut pip = Command::new(folder.join("bin/python"));
            pip.args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "-r",
            ]);
            command_output(pip.arg(requirements));
            std::fs::write(ready, "").unwrap();
        }
        folder
    })
}

/// Runs a step of the set-up.
fn command_output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/setup installs Python"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "these tests need PyPI (or a proxy of it in pip's own settings), and could not install from it:\n{command:?}\n\
         {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Where the examples are.
fn examples(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/python")
        .join(name)
}

/// Runs a Python program to its end; what it printed.
async fn python(folder: &Path, arguments: &[&str]) -> String {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(venv().join("bin/python"));
    command
        .args(arguments)
        .current_dir(folder)
        // Nothing is left beside the examples.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TMPDIR", folder)
        .env("BANK", folder.join("bank"))
        .stdin(Stdio::null())
        // Of one open file, or two offsets write over each other.
        .stdout(log.as_file().try_clone().unwrap())
        .stderr(log.as_file().try_clone().unwrap());
    let mut process = Process::spawn(&mut command).unwrap();
    let text = || std::fs::read_to_string(log.path()).unwrap();
    let deadline = std::time::Instant::now() + 10 * LIMIT;
    loop {
        if let Some(status) = process.ended() {
            assert!(status.success(), "{arguments:?} ended with {status}:\n{}", text());
            return text();
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{arguments:?} did not end:\n{}",
            text()
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// The path of a program of the examples, as text.
fn program(name: &str) -> String {
    examples(name).to_str().unwrap().to_owned()
}

async fn api(more: &str) -> (Folder, Daemon, String) {
    let port = free_port();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:semel.db\"\n[api]\nlisten = \"127.0.0.1:{port}\"\n{more}"
    ));
    let daemon = folder.start().await;
    daemon.until_ready().await;
    (folder, daemon, format!("http://127.0.0.1:{port}"))
}

#[tokio::test]
async fn the_document_holds_against_schemathesis() {
    let (folder, daemon, base) = api(
        "wait_ms_max = 20\nissue_secret = \"0123456789abcdef0123456789abcdef\"\n[[api.token]]\nname = \"attacker\"\ntoken = \"0123456789abcdef\"\nscopes = [\"*\"]\n\
         allow = [\"issue\", \"claim\", \"extend\", \"complete\", \"release\", \"abandon\", \"read\", \"wait\", \"list\", \
         \"settle\", \"close\"]\n",
    )
    .await;
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis.toml");
    std::fs::copy(config, folder.file("schemathesis.toml")).unwrap();
    let document = format!("{base}/v1/openapi.json");
    let token = "Authorization: Bearer 0123456789abcdef";
    let schemathesis = venv().join("bin/schemathesis");
    let report = python(
        folder.path(),
        &[
            schemathesis.to_str().unwrap(),
            "run",
            &document,
            "--header",
            token,
            "--checks",
            "all",
            "--no-color",
            "--continue-on-failure",
        ],
    )
    .await;
    assert!(report.contains("No issues found"), "{report}");
    let selected = format!("Tested: {}", 13);
    assert!(report.contains(&selected), "every operation was tried:\n{report}");
    assert!(
        report.contains("4 covered / 4 selected"),
        "every link was followed:\n{report}"
    );
    let (code, log) = daemon.stop().await;
    assert!(code == 0 && !log.contains("0123456789abcdef"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn the_example_of_the_key_api_charges_once() {
    let (folder, _daemon, base) = api("").await;
    let printed = python(folder.path(), &[&program("key_api/charge.py"), &base]).await;
    assert_eq!(printed.matches("charged once").count(), 2, "{printed}");
    assert!(printed.contains("unknown, and not charged again"), "{printed}");
}

#[tokio::test]
async fn the_example_behind_the_gateway_orders_once() {
    let (gateway, shop) = (free_port(), free_port());
    let config = std::fs::read_to_string(examples("gateway/semel.toml")).unwrap();
    assert!(config.contains("127.0.0.1:8080") && config.contains("127.0.0.1:9001"));
    let config = config
        .replace("127.0.0.1:8080", &format!("127.0.0.1:{gateway}"))
        .replace("127.0.0.1:9001", &format!("127.0.0.1:{shop}"));
    let folder = Folder::new(&config);
    let mut command = Command::new(venv().join("bin/python"));
    command
        .args([&program("gateway/shop.py"), &shop.to_string(), "orders.txt"])
        .current_dir(folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut shop_process = Process::spawn(&mut command).unwrap();
    let daemon = folder.start().await;
    daemon.until_ready().await;
    until("the shop listens", async || {
        tokio::net::TcpStream::connect(("127.0.0.1", shop)).await.is_ok()
    })
    .await;
    let base = format!("http://127.0.0.1:{gateway}");
    let printed = python(
        folder.path(),
        &[&program("gateway/try_it.py"), &base, "orders.txt"],
    )
    .await;
    assert!(printed.contains("held, and not ordered again"), "{printed}");
    assert!(shop_process.ended().is_some(), "the shop died, as it was told to");
}

#[tokio::test]
async fn the_example_with_fastapi_orders_once() {
    let url = migrated();
    let folder = tempfile::tempdir().unwrap();
    let printed = python(folder.path(), &[&program("fastapi/try_it.py"), &url]).await;
    assert_eq!(printed.matches("ordered once").count(), 4, "{printed}");
}

#[tokio::test]
async fn the_example_with_psycopg_holds_its_tests() {
    let url = migrated();
    let folder = tempfile::tempdir().unwrap();
    let printed = python(folder.path(), &[&program("psycopg/test_orders.py"), &url]).await;
    assert!(
        printed.lines().count() >= 9 && printed.lines().all(|line| line.starts_with("ok ")),
        "{printed}"
    );
}

/// A database with Semel's schema.
fn migrated() -> String {
    let url = postgres().fresh_database();
    let output = super::daemon::semel()
        .args(["migrate", "--url", &url])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    url
}
