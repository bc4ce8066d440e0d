//! What `[[gateway]]` refuses.

use std::path::Path;

use super::config;

fn mistakes(lines: &str) -> String {
    let text = format!(
        "[store]\nurl = \"sqlite:s.db\"\n[[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:0\"\n{lines}\n"
    );
    match crate::config::parse(Path::new("semel.toml"), &text, &|_| None) {
        Ok(_) => "no mistake".to_owned(),
        Err(report) => report.to_string(),
    }
}

#[test]
fn each_mistake_says_what_to_write_instead() {
    let upstream = "upstream = \"http://u\"\n";
    for (lines, says) in [
        ("anonymous = true", "`upstream` is missing"),
        (upstream, "nothing says whose keys these are"),
        (
            "upstream = \"http://u\"\nanonymous = true\nprincipal_header = \"X-User\"",
            "exclude each other",
        ),
        (
            "upstream = \"http://u\"\nprincipal_header = \"X User\"",
            "this is no name of a header",
        ),
        ("upstream = \"https://u\"\nanonymous = true", "do not speak TLS"),
        (
            "upstream = \"http://u/?x\"\nanonymous = true",
            "`upstream` has a query",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nmethods = [\"GET\"]",
            "this method cannot be keyed",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nmethods = [\"post\"]",
            "in capitals",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\npaths = [\"orders\"]",
            "this is no path",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nkey = \"need\"",
            "none of the words",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nlease_ms = 10",
            "outside 1000 to",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nretention_days = 1",
            "unknown field `retention_days`",
        ),
    ] {
        let shown = mistakes(lines);
        assert!(shown.contains(says), "{lines}\n{shown}");
    }
}

#[test]
fn the_defaults_are_those_of_the_documentation() {
    let read = config("127.0.0.1:9".parse().unwrap(), "anonymous = true");
    for field in super::super::GATEWAY.fields {
        let shown = field.default.trim_matches('`');
        let found = match field.name {
            "request_bytes_max" => read.layer.request_bytes_max.to_string(),
            "response_bytes_max" => read.layer.response_bytes_max.to_string(),
            "lease_ms" => read.layer.lease_ms.to_string(),
            "retention_ms" => read.layer.keep.retention_ms.to_string(),
            "tombstone_ms" => read.layer.keep.tombstone_ms.to_string(),
            "wait_ms_max" => read.layer.wait_ms_max.to_string(),
            "running_max" => read.layer.running_max.to_string(),
            "connect_timeout_ms" => read.proxy.connect.as_millis().to_string(),
            "total_timeout_ms" => read.proxy.total.as_millis().to_string(),
            "upstream_idle_ms" => read.proxy.idle.as_millis().to_string(),
            _ => continue,
        };
        assert_eq!(found, shown, "{}", field.name);
    }
}
