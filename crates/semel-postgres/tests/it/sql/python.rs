//! The psycopg example passes its own tests, directly and through a pooler.

use std::path::Path;
use std::process::Command;

use semel_testkit::servers::pgbouncer;

use crate::keys::Lent;

/// A Python with psycopg; `None` where that cannot be made (no network, no venv).
fn python(dir: &Path, example: &Path) -> Option<std::path::PathBuf> {
    let made = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let venv = dir.join("venv");
    let python = venv.join("bin/python");
    let requirements = example.join("requirements.txt");
    let ready = made(Command::new("python3").args(["-m", "venv"]).arg(&venv))
        && made(
            Command::new(&python)
                .args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"])
                .arg(requirements),
        );
    ready.then_some(python)
}

#[tokio::test]
async fn the_psycopg_example_passes_its_tests() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python/psycopg");
    let dir = tempfile::tempdir().unwrap();
    let Some(python) = python(dir.path(), &example) else {
        eprintln!("skipped: no venv with psycopg can be made here");
        return;
    };
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
