//! What wrong use gets: exit code 2, the place, the fix.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::daemon::{Folder, LIMIT, run, semel, texts};

#[test]
fn every_command_that_reads_the_file_names_all_mistakes_and_exits_with_2() {
    let folder = Folder::new(
        "lisen = 1\n[store]\nurl = \"sqlit:x.db\"\n[[relay]]\nname = \"r\"\nsink.webhook.url = \"http://127.0.0.1:1/\"\nstor = \"x\"",
    );
    let expected = "\
semel.toml:3:1: unknown field `lisen` in [server]
  3 | lisen = 1
    | ^^^^^
    = did you mean `listen`?

semel.toml:5:7: unknown scheme `sqlit` in the store URL
  5 | url = \"sqlit:x.db\"
    |       ^^^^^^^^^^^^
    = did you mean `sqlite`? known schemes: sqlite:, postgres://, mysql://, redis://, rediss://

semel.toml:9:1: unknown field `stor` in [[relay]]
  9 | stor = \"x\"
    | ^^^^
    = did you mean `store`?

3 mistakes in semel.toml
";
    for command in ["run", "migrate"] {
        let (stdout, stderr, code) = texts(&run(folder.path(), &[command, "-c", "semel.toml"]));
        assert_eq!((stdout.as_str(), code), ("", 2), "{command}");
        assert_eq!(stderr, format!("error: {expected}"), "{command}");
    }
    // For `check` the mistakes are the data that was asked for.
    let (stdout, stderr, code) = texts(&run(folder.path(), &["check", "-c", "semel.toml"]));
    assert_eq!((stdout.as_str(), stderr.as_str(), code), (expected, "", 2));
    assert!(!folder.file("x.db").exists());
}

#[test]
fn check_gives_mistakes_as_json_too() {
    let folder = Folder::new("lisen = 1");
    let (stdout, _, code) = texts(&run(folder.path(), &["check", "--json"]));
    let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(code, 2);
    assert_eq!(value["ok"], false);
    assert_eq!(value["mistakes"][0]["line"], 3);
    assert_eq!(value["mistakes"][0]["column"], 1);
    assert_eq!(value["mistakes"][0]["fix"], "did you mean `listen`?");
}

#[test]
fn a_file_that_is_not_there_is_named_with_what_to_do() {
    let folder = Folder::new("");
    let (_, stderr, code) = texts(&run(folder.path(), &["run", "-c", "other.toml"]));
    assert_eq!(code, 2);
    assert!(stderr.contains("other.toml: the file cannot be read"), "{stderr}");
    assert!(stderr.contains("semel.example.toml"), "{stderr}");
}

/// A pipe without a writer and a device without an end would be read for ever.
#[test]
fn a_configuration_that_is_no_regular_file_or_has_no_end_is_refused_at_once() {
    let folder = Folder::new("");
    let made = Command::new("mkfifo")
        .arg(folder.file("pipe.toml"))
        .status()
        .unwrap();
    assert!(made.success());
    for file in ["pipe.toml", "/dev/zero", "."] {
        let child = semel()
            .current_dir(folder.path())
            .args(["check", "--offline", "-c", file])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Ends(child);
        let deadline = Instant::now() + LIMIT / 6;
        while child.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it reads {file} for ever");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut stdout = String::new();
        child
            .0
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut stdout)
            .unwrap();
        assert_eq!(child.0.wait().unwrap().code(), Some(2), "{stdout}");
        assert!(stdout.contains("this is no regular file"), "{stdout}");
    }
    std::fs::write(folder.file("large.toml"), "é".repeat(1 << 20)).unwrap();
    let (stdout, _, code) = texts(&run(folder.path(), &["check", "-c", "large.toml"]));
    assert_eq!(code, 2);
    assert!(
        stdout.contains("1048576") && stdout.contains("is this the right file?"),
        "{stdout}"
    );
}

/// Killed at the end of its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Half a script in a file that nobody was told about is worse than none.
#[test]
fn data_that_cannot_be_written_is_a_failure_and_a_reader_that_left_is_none() {
    let folder = Folder::new("[store]\nurl = \"sqlite:semel.db\"");
    for command in [
        &["check"][..],
        &["check", "--json"],
        &["check", "--fields"],
        &["migrate", "--print"],
        &["migrate"],
        &["--help"],
        &[],
    ] {
        let start = |stdout: Stdio| {
            let mut semel = semel();
            semel.current_dir(folder.path()).args(command).stdout(stdout);
            semel.stderr(Stdio::piped()).output().unwrap()
        };
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (_, stderr, code) = texts(&start(full.into()));
        assert_eq!(code, 1, "{command:?}: {stderr}");
        assert!(
            stderr.contains("stdout cannot be written"),
            "{command:?}: {stderr}"
        );

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (_, stderr, code) = texts(&start(writer.into()));
        assert_eq!((code, stderr.as_str()), (0, ""), "{command:?}");
    }
}

#[test]
fn wrong_flags_exit_with_2_and_no_arguments_explain_themselves() {
    let folder = Folder::new("");
    let (_, stderr, code) = texts(&run(folder.path(), &["rnu"]));
    assert_eq!(code, 2);
    assert!(stderr.contains("rnu"), "{stderr}");
    let (stdout, _, code) = texts(&run(folder.path(), &[]));
    assert_eq!(code, 0);
    assert!(
        stdout.contains("semel demo") && stdout.contains("semel run"),
        "{stdout}"
    );
    let (_, stderr, code) = texts(&run(folder.path(), &["run", "--log", "semel=loud"]));
    assert_eq!(code, 2);
    assert!(stderr.contains("--log semel=loud"), "{stderr}");
}
