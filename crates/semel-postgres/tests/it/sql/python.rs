//! The psycopg example passes its own tests, directly and through a pooler.

use std::path::Path;
use std::process::Command;

use semel_testkit::servers::pgbouncer;

use crate::keys::Lent;

/// A Python with what the example needs.
fn python(dir: &Path, example: &Path) -> std::path::PathBuf {
    let made = |command: &mut Command| {
        let output = command.output();
        let output =
            output.unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/setup installs Python"));
        assert!(
            output.status.success(),
            "this test needs PyPI (or a proxy of it in pip's own settings), and could not install from it:\n{command:?}\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    };
    let venv = dir.join("venv");
    let python = venv.join("bin/python");
    made(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    made(
        Command::new(&python)
            .args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"])
            .arg(example.join("requirements.txt")),
    );
    python
}

#[tokio::test]
async fn the_psycopg_example_passes_its_tests() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python/psycopg");
    let dir = tempfile::tempdir().unwrap();
    let python = python(dir.path(), &example);
    let (lent, db) = Lent::take().await;
    for dsn in [lent.url.clone(), pgbouncer().plain_url(&lent.url)] {
        let run = Command::new(&python)
            .arg(example.join("test_orders.py"))
            .arg(&dsn)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            run.status.success(),
            "{dsn}: {}{}",
            text(&run.stdout),
            text(&run.stderr)
        );
        assert_eq!(text(&run.stdout).lines().count(), 9, "{}", text(&run.stdout));
    }
    sqlx::raw_sql("DROP TABLE orders")
        .execute(db.pool())
        .await
        .unwrap();
}
