//! What wrong use gets: exit code 2, the place, the fix.

use super::daemon::{Folder, run, texts};

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
    = did you mean `sqlite`? known schemes: sqlite:, postgres://

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
