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

/// It would stand in the log, and be sent to nobody.
#[test]
fn a_url_with_a_password_is_a_mistake_that_does_not_show_it() {
    for (name, lines) in [
        (
            "upstream",
            "upstream = \"http://user:secret@u\"\nanonymous = true",
        ),
        (
            "auth_url",
            "upstream = \"http://u\"\nprincipal_header = \"X-User\"\nauth_url = \"http://user:secret@a/who\"",
        ),
        (
            "reconcile_url",
            "upstream = \"http://u\"\nanonymous = true\nreconcile_url = \"http://user:secret@r/\"",
        ),
    ] {
        let shown = mistakes(lines);
        assert!(
            shown.contains(&format!("`{name}` has credentials in it")),
            "{shown}"
        );
        assert!(!shown.contains("secret"), "{shown}");
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
        (
            "upstream = \"http://u/?x\"\nanonymous = true",
            "`upstream` has a query",
        ),
        (
            "upstream = \"http://user:secret@u\"\nanonymous = true",
            "`upstream` has credentials in it",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nfingerprint_only = [\"amount\"]",
            "is no JSON pointer",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nfingerprint_only = []",
            "no place counts",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nfingerprint_only = [\"/a\"]\nfingerprint_except = [\"/b\"]",
            "exclude each other",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nfingerprint = \"form\"\nfingerprint_except = [\"/b\"]",
            "pointers lead into JSON",
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
            "upstream = \"http://u\"\nanonymous = true\nowner_lost = \"rerun\"",
            "add `upstream_deduplicates = true`",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nrelease_on = [409, 500]",
            "outside 400 to 499",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nstatus_url = \"https://shop.example/ops\"",
            "no http URL with one `{key}`",
        ),
        (
            "upstream = \"http://u\"\nprincipal_header = \"X-User\"\nchallenge = \"a\\nb\"",
            "no `WWW-Authenticate` can say this",
        ),
        (
            "upstream = \"http://u\"\nauth_url = \"http://a\"",
            "nothing says where `auth_url` names the caller",
        ),
        (
            "upstream = \"http://u\"\nprincipal_header = \"X-User\"\nissued_keys = \"required\"",
            "add issue_secret",
        ),
        (
            "upstream = \"http://u\"\nprincipal_header = \"X-User\"\nissue_secret = \"hunter2\"",
            "fewer than 32 characters",
        ),
        (
            "upstream = \"http://u\"\nprincipal_header = \"X-User\"\nissue_secret = \"0123456789abcdef0123456789abcdef\"",
            "`issue_secret` does nothing",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nissued_keys = \"accepted\"\n\
             issue_secret = \"0123456789abcdef0123456789abcdef\"",
            "needs callers that can be told apart",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nhost = \"a b\"",
            "`host` is no host name",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nhost = \"preserve\"\nupstream_http = \"2\"",
            "cannot be changed over HTTP/2",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nupstream_tls = { server_name = \"a\" }",
            "is for an https:// upstream",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nupstream_http = \"auto\"",
            "needs an https:// upstream",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\ntls = { cert = \"no.pem\", key = \"no.key\" }",
            "no.pem cannot be read",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\n[[gateway.route]]\npaths = [\"/a%20b\"]",
            "this is no path",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\n[[gateway.route]]\nkey = \"off\"",
            "`paths` is missing",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\n[[gateway.route]]\npaths = [\"/a\"]\n\
             [[gateway.route]]\npaths = [\"/a/b\"]\nmethods = [\"POST\"]",
            "route 1 of this gateway covers all of it",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nretention_days = 1",
            "unknown field `retention_days`",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\ncors_origins = [\"https://shop.example/\"]",
            "is no origin",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\ncors_origins = [\"https://a\", \"*\"]",
            "is no origin",
        ),
        (
            "upstream = \"http://u\"\nanonymous = true\nstore_ms_max = 60001",
            "outside 1 to 60000",
        ),
    ] {
        let shown = mistakes(lines);
        assert!(shown.contains(says), "{lines}\n{shown}");
    }
}

#[test]
fn the_defaults_are_those_of_the_documentation() {
    let read = config("127.0.0.1:9".parse().unwrap(), "anonymous = true");
    let own = read.routes.last().unwrap();
    for field in super::super::GATEWAY.fields {
        let shown = field.default.trim_matches('`');
        let found = match field.name {
            "request_bytes_max" => own.layer.request_bytes_max.to_string(),
            "response_bytes_max" => own.layer.response_bytes_max.to_string(),
            "lease_ms" => own.layer.lease_ms.to_string(),
            "retention_ms" => own.layer.keep.retention_ms.to_string(),
            "tombstone_ms" => own.layer.keep.tombstone_ms.to_string(),
            "wait_ms_max" => own.layer.wait_ms_max.to_string(),
            "waiters_per_key_max" => own.layer.waiters_per_key_max.to_string(),
            "waiters_max" => own.layer.waiters_max.to_string(),
            "store_ms_max" => own.layer.store_ms_max.to_string(),
            "running_max" => own.layer.running_max.to_string(),
            "behind_max" => own.layer.behind_max.to_string(),
            "behind_bytes_max" => own.layer.behind_bytes_max.to_string(),
            "connect_timeout_ms" => read.proxy.connect.as_millis().to_string(),
            "total_timeout_ms" => own.sending.total.as_millis().to_string(),
            "first_byte_timeout_ms" => own.sending.first_byte.as_millis().to_string(),
            "answer_idle_ms" => own.sending.answer_idle.as_millis().to_string(),
            "connections_max" => read.front.connections_max.to_string(),
            "streams_max" => read.front.streams_max.to_string(),
            "headers_max" => read.front.headers_max.to_string(),
            "header_bytes_max" => read.front.header_bytes_max.to_string(),
            "head_timeout_ms" => read.front.head_timeout.as_millis().to_string(),
            "body_idle_ms" => read.front.body_idle.as_millis().to_string(),
            "client_idle_ms" => read.front.client_idle.as_millis().to_string(),
            "upstream_idle_max" => read.proxy.idle_max.to_string(),
            "upstream_idle_ms" => read.proxy.idle.as_millis().to_string(),
            _ => continue,
        };
        assert_eq!(found, shown, "{}", field.name);
    }
}

#[test]
fn a_route_has_the_limits_of_its_gateway_or_its_own() {
    let read = config(
        "127.0.0.1:9".parse().unwrap(),
        "anonymous = true\nwaiters_per_key_max = 3\nwaiters_max = 5\nstore_ms_max = 700\n\
         [[gateway.route]]\npaths = [\"/a\"]\nwaiters_per_key_max = 0\n",
    );
    let limits = |route: usize| {
        let layer = &read.routes[route].layer;
        (layer.waiters_per_key_max, layer.waiters_max, layer.store_ms_max)
    };
    assert_eq!((limits(0), limits(1)), ((0, 5, 700), (3, 5, 700)));
}
