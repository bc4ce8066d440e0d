//! What a wrong file gets: the exact words.

use std::path::Path;

use super::*;

fn env(name: &str) -> Option<String> {
    (name == "SET").then(|| "postgres://u:hunter2@db/shop".to_owned())
}

fn load(text: &str) -> Result<Config, String> {
    parse(Path::new("semel.toml"), text, &env).map_err(|report| report.to_string())
}

fn mistakes(text: &str) -> String {
    load(text).map(|_| ()).unwrap_err()
}

#[test]
fn an_empty_file_is_a_daemon_without_roles() {
    let config = load("").unwrap();
    assert!(config.stores.is_empty() && config.relays.is_empty() && config.saga.is_none());
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:7080");
}

#[test]
fn a_quota_is_per_store_has_defaults_and_is_refused_where_nobody_can_count() {
    let config =
        load("[store]\nurl = \"sqlite:s.db\"\n[stores.b]\nurl = \"memory:\"\nquota = { records_max = 5 }")
            .unwrap();
    assert_eq!(config.stores[0].quota, None);
    let quota = config.stores[1].quota.unwrap();
    assert_eq!((quota.records_max, quota.bytes_max), (5, 1 << 30));
    let wrong = mistakes(
        "[store]\nurl = \"sqlite:s.db\"\nquota = { records_max = 0, record_max = 1 }\nrecords_max = 7\n[store2]\n",
    );
    for wanted in [
        "`records_max` is 0, outside 1 to",
        "did you mean `records_max`?",
        "unknown field `records_max` in [store]",
        "it belongs to [store.quota]",
    ] {
        assert!(wrong.contains(wanted), "{wanted}\n{wrong}");
    }
    #[cfg(feature = "redis")]
    {
        let wrong = mistakes("[store]\nurl = \"redis://h\"\nquota = {}");
        assert!(
            wrong.contains("a Redis cannot count what a scope holds"),
            "{wrong}"
        );
    }
}

/// No mistake, so it runs; and `check` and the log say that it does not do what was meant.
#[test]
fn settings_that_do_nothing_or_not_what_was_meant_are_doubted_with_their_line() {
    let config = load(
        "[store]\nurl = \"sqlite:s.db\"\n[stores.m]\nurl = \"memory:\"\nmigrate = true\n\
         [api]\nwait_ms_max = 0\nwaiters_max = 9\n\
         [[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:1\"\nupstream = \"http://u\"\n\
         principal_header = \"Cookie\"\nauth_timeout_ms = 5\nreconcile_ms_max = 7\nkey_headers = [\"Authorization\"]\n\
         [[gateway.route]]\npaths = [\"/notes\"]\nkey = \"off\"\nretention_ms = 5\ntotal_timeout_ms = 6\n\
         [[gateway.route]]\npaths = [\"/a\"]\nreconcile_url = \"http://r\"\nreconcile_ms_max = 9\n",
    )
    .unwrap();
    let doubts: Vec<String> = config
        .doubts
        .iter()
        .map(|doubt| format!("{}: {}", doubt.line, doubt.message))
        .collect();
    assert_eq!(
        doubts,
        [
            "5: `migrate` of [stores.NAME] does nothing: the store is in memory",
            "8: `waiters_max` of [api] does nothing: wait_ms_max = 0 lets nobody wait",
            "13: `principal_header` is Cookie, a credential that changes while its caller stays",
            "14: `auth_timeout_ms` of [[gateway]] does nothing: there is no `auth_url` beside it",
            "15: `reconcile_ms_max` of [[gateway]] does nothing: there is no `reconcile_url` beside it",
            "16: `key_headers` names authorization, a credential: every request of a caller would be the same operation",
            "20: `retention_ms` of [[gateway.route]] does nothing: keys are off on this route",
            "21: `total_timeout_ms` of [[gateway.route]] does nothing: keys are off on this route",
        ]
    );
    assert!(
        load("[store]\nurl = \"sqlite:s.db\"\n")
            .unwrap()
            .doubts
            .is_empty()
    );
}

/// How a relay comes to Kafka's brokers: all of it, or a mistake with its line.
#[cfg(feature = "kafka-tls")]
#[test]
fn tls_and_the_user_of_kafka_are_whole_and_said_once() {
    let relay = |more: &str| {
        format!(
            "[store]\nurl = \"sqlite:s.db\"\n[[relay]]\nname = \"r\"\nsink.kafka.brokers = [\"b:1\"]\n{more}\n"
        )
    };
    let user = |mechanism: &str| {
        format!("sink.kafka.sasl = {{ mechanism = \"{mechanism}\", user = \"u\", password = \"hunter2\" }}")
    };
    let config = load(&relay(&format!(
        "sink.kafka.tls = {{}}\n{}",
        user("SCRAM-SHA-512")
    )))
    .unwrap();
    assert!(!format!("{config:?}").contains("hunter2") && config.doubts.is_empty());
    let plain = load(&relay(&user("PLAIN"))).unwrap();
    assert_eq!(plain.doubts[0].line, 6);
    assert!(plain.doubts[0].message.contains("can read the password"));
    for (more, wanted) in [
        (
            "sink.kafka.tls = { ca_file = \"no-such.pem\" }",
            "the file no-such.pem cannot be read",
        ),
        (
            "sink.kafka.tls = { cert_file = \"c.pem\" }",
            "`cert_file` and `key_file` belong together",
        ),
        (
            "sink.kafka.sasl = { mechanism = \"PLAIN\", user = \"u\" }",
            "`password`",
        ),
        (user("SCRAM-SHA-1").as_str(), "`mechanism` is none of the words"),
        (
            "sink.kafka.tls = {}\nsink.kafka.properties = { \"security.protocol\" = \"plaintext\" }",
            "`security.protocol` follows from `tls` and `sasl`",
        ),
    ] {
        let found = mistakes(&relay(more));
        assert!(
            found.contains(wanted) && !found.contains("hunter2"),
            "{wanted}\n{found}"
        );
    }
}

#[test]
fn all_mistakes_are_named_at_once_with_place_and_fix() {
    let text = r#"[server]
lisen = "127.0.0.1:7080"
body_bytes_max = "x"

[store]
url = "mongo://root:hunter2@db/x"
migrate = 3

[[relay]]
name = "orders"
sink = { webhook = { url = "ftp://x", secrt = "hunter2" } }

[saga]
concurrency = 0
url = "sqlite:x"
"#;
    let expected = r#"semel.toml:2:1: unknown field `lisen` in [server]
  2 | lisen = "127.0.0.1:7080"
    | ^^^^^
    = did you mean `listen`?

semel.toml:3:18: `body_bytes_max` must be a whole number, not text
  3 | body_bytes_max = "x"
    |                  ^^^
    = write it like `body_bytes_max = 1048576`

semel.toml:6:7: unknown scheme `mongo` in the store URL
  6 | url = "mongo://root:*******@db/x"
    |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^
    = known schemes: sqlite:, postgres://, mysql://, redis://, rediss://

semel.toml:7:11: `migrate` must be true or false, not a whole number
  7 | migrate = 3
    |           ^
    = write it like `migrate = true`

semel.toml:11:28: `url` is no http URL
  11 | sink = { webhook = { url = "ftp://x", secrt = "*******" } }
     |                            ^^^^^^^^^
     = write it with scheme and host, such as "http://127.0.0.1:8080/events"

semel.toml:11:39: unknown field `secrt` in sink.webhook
  11 | sink = { webhook = { url = "ftp://x", secrt = "*******" } }
     |                                       ^^^^^
     = did you mean `secrets`?

semel.toml:14:15: `concurrency` is 0, outside 1 to 1000000
  14 | concurrency = 0
     |               ^
     = write a number from 1 to 1000000

semel.toml:15:1: unknown field `url` in [saga]
  15 | url = "********"
     | ^^^
     = it belongs to [store]

8 mistakes in semel.toml"#;
    assert_eq!(mistakes(text), expected);
}

#[test]
fn a_file_that_is_no_toml_names_every_place_it_breaks() {
    let shown = mistakes("[server\nlisten = \"127.0.0.1:1\"\n[[relay]\nx = = 3\n");
    for place in [
        "1:8: unclosed table",
        "3:9: unclosed array table",
        "4:5: extra `=`",
    ] {
        assert!(shown.contains(place), "{shown}");
    }
}

#[test]
fn secrets_are_shown_in_no_message() {
    for text in [
        "[server]\ntoken = \"hunter2\"\n",
        "[server]\ntokne = \"hunter2\"\n",
        "[server]\ntoken = [\"hunter2\"]\n",
        "[server]\ntoken = \"hunter2\n",
        "[server]\nlisten = 1\nurl = \"postgres://u:hunter2@h/d\"\n",
        "[store]\nurl = \"postgress://u:hunter2@h/d\"\n",
        "[store]\nurl = \"hunter2\n",
        "[store]\nurl = \"${SET}\"\nmigrate = 1\n",
        "[store]\nurl = \"x${SET}\"\n",
    ] {
        let shown = mistakes(text);
        assert!(!shown.contains("hunter2"), "{text}\ngave\n{shown}");
    }
}

#[test]
fn a_missing_variable_is_named_and_a_set_one_is_used() {
    let shown = mistakes("[store]\nurl = \"${NOPE}\"\n");
    assert!(
        shown.contains("2:7: the environment variable NOPE is not set"),
        "{shown}"
    );
    assert!(shown.contains("export NOPE="), "{shown}");
    #[cfg(feature = "postgres")]
    assert_eq!(
        load("[store]\nurl = \"${SET}\"\n").unwrap().stores[0].url,
        store::StoreUrl::Postgres("postgres://u:hunter2@db/shop".to_owned())
    );
}

#[test]
fn roles_name_stores_that_are_there() {
    let relay = "[[relay]]\nname = \"r\"\nsink = { webhook = { url = \"http://x\" } }\n";
    let shown = mistakes(relay);
    assert!(
        shown.contains("1:1: [[relay]] has no store: there is no [store]"),
        "{shown}"
    );

    let text = format!("[stores.orders]\nurl = \"sqlite:o.db\"\n{relay}store = \"order\"\n");
    let shown = mistakes(&text);
    assert!(shown.contains("there is no store called `order`"), "{shown}");
    assert!(shown.contains("did you mean \"orders\"?"), "{shown}");

    let text = text.replace("\"order\"", "\"orders\"");
    assert_eq!(load(&text).unwrap().relays[0].store, "orders");
}

#[cfg(feature = "redis")]
#[test]
fn a_redis_holds_keys_and_nothing_else() {
    let stores =
        "[store]\nurl = \"sqlite:s.db\"\n[stores.keys]\nurl = \"redis://u:hunter2@h\"\ncluster = true\n";
    let gateway = "[[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:7081\"\nupstream = \"http://x\"\n\
                   anonymous = true\nstore = \"keys\"\n";
    let config = load(&format!("{stores}{gateway}")).unwrap();
    assert_eq!(config.stores[1].url.to_string(), "redis://h");
    assert!(config.stores[1].redis.cluster && !config.stores[1].migrate);
    for role in [
        "[[relay]]\nname = \"r\"\nsink = { webhook = { url = \"http://x\" } }\nstore = \"keys\"\n",
        "[saga]\nstore = \"keys\"\n",
    ] {
        let shown = mistakes(&format!("{stores}{role}"));
        assert!(
            shown.contains("needs an SQL store; `keys` is a Redis, which holds keys only"),
            "{shown}"
        );
        assert!(shown.contains("SEM0239") && !shown.contains("hunter2"), "{shown}");
    }
    let shown = mistakes("[store]\nurl = \"redis://h\"\n[saga]\n");
    assert!(
        shown.contains("[saga] needs an SQL store; `default` is a Redis"),
        "{shown}"
    );
    let shown = mistakes("[store]\nurl = \"sqlite:s.db\"\nreplicas_min = 1\n");
    assert!(
        shown.contains("`replicas_min` is a setting of Redis, and this store is none"),
        "{shown}"
    );
    let shown = mistakes("[store]\nurl = \"redis://h\"\nprefix = \"a:b\"\n");
    assert!(shown.contains("this prefix cannot be used"), "{shown}");
}

#[cfg(feature = "mysql")]
#[test]
fn a_mysql_holds_keys_and_an_outbox_and_no_sagas_yet() {
    let stores = "[store]\nurl = \"sqlite:s.db\"\n[stores.shop]\nurl = \"mysql://u:hunter2@h/d\"\n";
    let gateway = "[[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:7081\"\nupstream = \"http://x\"\n\
                   anonymous = true\nstore = \"shop\"\n";
    let relay = "[[relay]]\nname = \"r\"\nsink = { webhook = { url = \"http://x\" } }\nstore = \"shop\"\n";
    let config = load(&format!("{stores}{gateway}{relay}")).unwrap();
    assert_eq!(config.stores[1].url.to_string(), "mysql://h/d");
    assert!(!config.stores[1].migrate);
    let shown = mistakes(&format!("{stores}[saga]\nstore = \"shop\"\n"));
    assert!(
        shown.contains("needs SQLite or PostgreSQL; `shop` is a MariaDB or MySQL"),
        "{shown}"
    );
    assert!(shown.contains("SEM0222") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn names_and_addresses_are_unique() {
    let relay = "[[relay]]\nname = \"r\"\nsink = { webhook = { url = \"http://x\" } }\n";
    let shown = mistakes(&format!("[store]\nurl = \"sqlite:s.db\"\n{relay}{relay}"));
    assert!(shown.contains("7:8: two [[relay]] are called `r`"), "{shown}");

    let gateway =
        "[[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:7081\"\nupstream = \"http://x\"\nanonymous = true\n";
    let server = "[server]\nlisten = \"127.0.0.1:7081\"\n[store]\nurl = \"sqlite:s.db\"\n";
    let shown = mistakes(&format!("{server}{gateway}"));
    assert!(
        shown.contains("another section listens on 127.0.0.1:7081 already"),
        "{shown}"
    );
}

#[test]
fn the_default_address_is_taken_too() {
    let gateway =
        "[[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:7080\"\nupstream = \"http://x\"\nanonymous = true\n";
    let shown = mistakes(&format!("[store]\nurl = \"sqlite:s.db\"\n{gateway}"));
    assert!(
        shown.contains("another section listens on 127.0.0.1:7080 already"),
        "{shown}"
    );
}

#[test]
fn an_address_others_can_reach_needs_a_token() {
    let shown = mistakes("[server]\nlisten = \"0.0.0.0:7080\"\n");
    assert!(shown.contains("there is no `token`"), "{shown}");
    load("[server]\nlisten = \"0.0.0.0:7080\"\ntoken = \"0123456789abcdef\"\n").unwrap();
}

#[test]
fn a_stream_has_one_relay() {
    let relay = |name: &str, rest: &str| {
        format!("[[relay]]\nname = \"{name}\"\nsink = {{ webhook = {{ url = \"http://x\" }} }}\n{rest}\n")
    };
    let store = "[store]\nurl = \"sqlite:s.db\"\n[stores.b]\nurl = \"sqlite:b.db\"\n";
    let shown = mistakes(&format!(
        "{store}{}{}",
        relay("a", ""),
        relay("b", "streams = \"default\"")
    ));
    assert!(
        shown.contains("another relay of this store publishes the stream `default` already"),
        "{shown}"
    );
    load(&format!(
        "{store}{}{}",
        relay("a", ""),
        relay("b", "store = \"b\"")
    ))
    .unwrap();
}

#[test]
fn a_delivery_ends_before_the_lease_does() {
    let text = "[store]\nurl = \"sqlite:s.db\"\n[[relay]]\nname = \"r\"\nlease_ms = 5000\n\
                sink = { webhook = { url = \"http://x\" } }\n";
    let shown = mistakes(text);
    assert!(
        shown.contains("`send_timeout_ms` is not below `lease_ms`"),
        "{shown}"
    );
    let relay = load(&format!("{text}send_timeout_ms = 2000\npoison = \"park_key\"\n"))
        .unwrap()
        .relays
        .remove(0);
    assert_eq!(relay.policy.send_timeout_ms, 2_000);
    assert_eq!(relay.policy.poison, semel_core::relay::Poison::ParkKey);
    let shown = mistakes(&format!("{text}poison = \"park\"\nsend_timeout_ms = 1\n"));
    assert!(
        shown.contains("did you mean \"park_key\"? Allowed: \"block\", \"park_key\", \"skip\""),
        "{shown}"
    );
}

#[test]
#[cfg(feature = "kafka")]
fn transactional_mode_has_a_name_and_a_window_that_holds_its_transactions() {
    let text = |more: &str| {
        format!(
            "[store]\nurl = \"sqlite:s.db\"\n[[relay]]\nname = \"r\"\n[relay.sink.kafka]\nbrokers = [\"b:1\"]\n{more}"
        )
    };
    let shown = mistakes(&text("mode = \"transactional\"\n"));
    assert!(shown.contains("`name`"), "{shown}");
    let shown = mistakes(&text("name = \"orders\"\n"));
    assert!(shown.contains("`name` is of transactional mode"), "{shown}");
    let relay = load(&text(
        "mode = \"transactional\"\nname = \"orders\"\ntransaction_rows_max = 2000\n",
    ))
    .unwrap()
    .relays
    .remove(0);
    assert_eq!(relay.policy.window_rows, 8_000);
    let sink::SinkConfig::Kafka(kafka) = relay.sink else {
        panic!("{:?}", relay.sink)
    };
    let transactional = kafka.transactional.unwrap();
    assert_eq!(
        (transactional.name.as_str(), transactional.rows_max),
        ("orders", 2_000)
    );
    assert!(kafka.linger.is_zero());
}

/// The file has a number of refusals and no time: a receiver that is away between two of them does not spend it.
#[test]
fn the_number_of_refusals_alone_makes_an_event_poison_whether_written_or_not() {
    let text = "[store]\nurl = \"sqlite:s.db\"\n[[relay]]\nname = \"r\"\nsink = { webhook = { url = \"http://x\" } }\n";
    for (text, attempts) in [(text.to_owned(), 5), (format!("{text}attempts_max = 7\n"), 7)] {
        let retry = load(&text).unwrap().relays[0].policy.retry;
        assert_eq!(retry.attempts_max, attempts);
        let year = 365 * 86_400_000;
        assert!(retry.delay_ms(attempts - 1, year, 0.0).is_some(), "{retry:?}");
        assert!(retry.delay_ms(attempts, 0, 0.0).is_none(), "{retry:?}");
    }
}

#[test]
fn only_gateways_may_keep_their_state_in_memory() {
    let text = "[store]\nurl = \"memory:\"\n[[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:0\"\n\
                upstream = \"http://u\"\nanonymous = true\n";
    let config = parse(Path::new("semel.toml"), text, &|_| None).unwrap_or_else(|report| panic!("{report}"));
    assert!(config.stores[0].url.is_memory());
    let saga = format!("{text}[saga]\n");
    let report = parse(Path::new("semel.toml"), &saga, &|_| None)
        .unwrap_err()
        .to_string();
    assert!(
        report.contains("[saga] cannot use the store `default`: it is in memory"),
        "{report}"
    );
    let report = mistakes(&format!("{text}[api]\n"));
    assert!(
        report.contains("[api] cannot use the store `default`: it is in memory"),
        "{report}"
    );
}
