use proptest::prelude::*;

use super::*;

fn request(build: impl Fn(http::request::Builder) -> http::request::Builder) -> Parts {
    let request = build(http::Request::post("/orders?x=1").header("content-type", "application/json"));
    request.body(()).unwrap().into_parts().0
}

static EXTRA: [HeaderName; 1] = [HeaderName::from_static("x-tenant")];

fn asked<'a>(head: &'a Parts, body: &'a [u8]) -> Asked<'a> {
    Asked {
        head,
        target: target(head),
        headers: &EXTRA,
        body,
    }
}

/// Nothing here waits: the body is whole.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a whole body is read at once"),
    }
}

fn print(profile: &Profile, kind: &'static str, body: &[u8]) -> Fingerprint {
    let (head, ()) = http::Request::post("/orders")
        .header("content-type", kind)
        .body(())
        .unwrap()
        .into_parts();
    now(of(asked(&head, body), profile))
}

fn json(profile: &Profile, body: &str) -> Fingerprint {
    print(profile, "application/json", body.as_bytes())
}

fn pointers(all: &[&str]) -> Vec<Pointer> {
    all.iter().map(|text| Pointer::new(*text).unwrap()).collect()
}

#[test]
fn each_part_of_the_request_counts() {
    let of = |build: &dyn Fn(http::request::Builder) -> http::request::Builder, body: &[u8]| {
        raw(asked(&request(build), body))
    };
    let base = of(&|r| r, b"{}");
    assert_eq!(base, of(&|r| r, b"{}"));
    for other in [
        of(&|r| r.method("PATCH"), b"{}"),
        of(&|r| r.uri("/order?x=1"), b"{}"),
        of(&|r| r.uri("/orders?x=2"), b"{}"),
        of(&|r| r.uri("/orders"), b"{}"),
        of(&|r| r.header("content-type", "text/plain"), b"{}"),
        of(&|r| r.header("content-encoding", "gzip"), b"{}"),
        of(&|r| r.header("x-tenant", ""), b"{}"),
        of(&|r| r, b"{ }"),
        of(&|r| r, b""),
    ] {
        assert_ne!(base, other);
    }
}

#[test]
fn credentials_dates_and_traces_do_not_count() {
    let base = raw(asked(&request(|r| r), b"{}"));
    for name in [
        "authorization",
        "cookie",
        "date",
        "traceparent",
        "signature",
        "user-agent",
    ] {
        let other = request(|r| r.header(name, "new"));
        assert_eq!(base, raw(asked(&other, b"{}")), "{name}");
    }
}

/// Stored fingerprints must be met again by later builds: this vector is the contract.
#[test]
fn the_recipe_is_stable_over_versions() {
    let digest = derive(&[b"{}"]);
    let parts: [&[u8]; 11] = [
        b"http",
        b"POST",
        b"/orders?x=1",
        &digest,
        b"content-type",
        &1_u64.to_be_bytes(),
        b"application/json",
        b"content-encoding",
        &0_u64.to_be_bytes(),
        b"x-tenant",
        &0_u64.to_be_bytes(),
    ];
    let by_hand = parts
        .iter()
        .fold(Fingerprint::builder_of(16), |all, part| all.part(part))
        .tag(tag(&[b"POST"]))
        .tag(tag(&[b"/orders?x=1"]))
        .tag(tag(&[b"content-type", b"application/json"]))
        .tag(digest[0])
        .tag(0)
        .finish();
    assert_eq!(raw(asked(&request(|r| r), b"{}")), by_hand);
}

#[test]
fn json_counts_by_its_value_not_by_its_text() {
    let base = json(&Profile::Json, r#"{"amount":10.0,"to":{"b":1,"a":"x"}}"#);
    for same in [
        r#"{"to":{"a":"x","b":1},"amount":10}"#,
        "{ \"amount\": 1e1,\n\"to\": {\"b\":1, \"a\":\"\\u0078\"} }",
    ] {
        assert_eq!(base, json(&Profile::Json, same), "{same}");
    }
    for other in [
        r#"{"amount":11,"to":{"b":1,"a":"x"}}"#,
        r#"{"amount":"10.0","to":{"b":1,"a":"x"}}"#,
        r#"{"amount":10.0,"to":{"b":1,"a":"x"},"more":null}"#,
    ] {
        assert_ne!(base, json(&Profile::Json, other), "{other}");
    }
    let with_charset = print(
        &Profile::Json,
        "application/json; charset=utf-8",
        br#"{"amount":10,"to":{"a":"x","b":1}}"#,
    );
    assert_eq!(base, with_charset);
}

#[test]
fn what_a_profile_cannot_read_is_taken_raw_and_its_number_says_so() {
    for body in [
        "{",
        r#"{"a":1,"a":2}"#,
        r#"{"amount":9007199254740993}"#,
        "\u{feff}{}",
    ] {
        let print = json(&Profile::Json, body);
        assert_eq!(print.version(), Profile::RAW, "{body}");
        assert_eq!(print, json(&Profile::Raw, body), "{body}");
    }
    assert_ne!(
        json(&Profile::Json, r#"{"amount":9007199254740993}"#),
        json(&Profile::Json, r#"{"amount":9007199254740992}"#)
    );
    for (profile, kind) in [
        (Profile::Json, "text/plain"),
        (Profile::Form, "application/json"),
        (Profile::Multipart, "multipart/form-data"),
        (Profile::Multipart, "multipart/form-data; boundary=x"),
    ] {
        assert_eq!(print(&profile, kind, b"{}").version(), Profile::RAW, "{kind}");
    }
    let packed = request(|r| r.header("content-encoding", "gzip"));
    assert_eq!(
        now(of(asked(&packed, b"{}"), &Profile::Json)).version(),
        Profile::RAW
    );
}

#[test]
fn pointers_choose_what_counts() {
    let only = Profile::JsonOnly(pointers(&["/amount", "/to/name"]));
    let base = json(&only, r#"{"amount":1,"to":{"name":"x","at":1}}"#);
    assert_eq!(
        base,
        json(&only, r#"{"to":{"at":2,"name":"x"},"amount":1,"note":"n"}"#)
    );
    assert_ne!(base, json(&only, r#"{"amount":2,"to":{"name":"x"}}"#));
    assert_ne!(base, json(&only, r#"{"amount":1,"to":{"name":null}}"#));
    assert_ne!(
        json(&only, r#"{"amount":1,"to":{"name":null}}"#),
        json(&only, r#"{"amount":1}"#),
        "null is not absent"
    );
    let except = Profile::JsonExcept(pointers(&["/sent_at", "/items/0/seen"]));
    let base = json(&except, r#"{"amount":1,"sent_at":1,"items":[{"seen":1,"a":1}]}"#);
    assert_eq!(
        base,
        json(&except, r#"{"amount":1,"items":[{"a":1,"seen":2}],"sent_at":2}"#)
    );
    assert_eq!(base, json(&except, r#"{"amount":1,"items":[{"a":1}]}"#));
    assert_ne!(base, json(&except, r#"{"amount":1,"items":[{"a":2}]}"#));
}

#[test]
fn form_fields_count_in_any_order_but_values_of_one_field_in_theirs() {
    let form = |body: &str| {
        print(
            &Profile::Form,
            "application/x-www-form-urlencoded",
            body.as_bytes(),
        )
    };
    let base = form("amount=1&to=a+b&to=c");
    assert_eq!(base.version(), Profile::Form.number());
    assert_eq!(base, form("to=a%20b&to=c&amount=1"));
    assert_ne!(base, form("to=c&to=a+b&amount=1"));
    assert_ne!(base, form("amount=1&to=a+bto=c"));
    assert_eq!(
        form("a=%ff").version(),
        Profile::RAW,
        "bytes that readers replace"
    );
}

#[test]
fn multipart_counts_by_its_parts_not_by_its_boundary() {
    let multi = |boundary: &str, amount: &str| {
        let kind: &'static str =
            Box::leak(format!("multipart/form-data; boundary={boundary}").into_boxed_str());
        let body = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"amount\"\r\n\r\n{amount}\r\n\
             --{boundary}\r\ncontent-disposition: form-data; name=\"f\"; filename=\"a.txt\"\r\ncontent-type: text/plain\r\n\r\nx\r\n\
             --{boundary}--\r\n"
        );
        print(&Profile::Multipart, kind, body.as_bytes())
    };
    assert_eq!(multi("one", "1").version(), Profile::Multipart.number());
    assert_eq!(multi("one", "1"), multi("two", "1"));
    assert_ne!(multi("one", "1"), multi("one", "2"));
}

fn told(profile: &Profile, first: &str, again: &str) -> String {
    let head = request(|r| r);
    let stored = now(of(asked(&head, first.as_bytes()), profile));
    now(explain(asked(&head, again.as_bytes()), profile, &stored))
}

#[test]
fn an_explanation_names_the_part_and_nothing_of_its_content() {
    let base = request(|r| r);
    let stored = raw(asked(&base, b"{}"));
    for (other, body, part) in [
        (request(|r| r.method("PUT")), &b"{}"[..], "the method"),
        (request(|r| r.uri("/refunds")), b"{}", "the target"),
        (
            request(|r| r.header("content-type", "a/b")),
            b"{}",
            "the content type or encoding",
        ),
        (
            request(|r| r.header("content-encoding", "gzip")),
            b"{}",
            "the content type or encoding",
        ),
        (
            request(|r| r.header("x-tenant", "t")),
            b"{}",
            "the header x-tenant",
        ),
        (request(|r| r), b"{ }", "the body"),
        (
            request(|r| r.method("PUT").uri("/refunds")),
            b"x",
            "the method, the target, the body",
        ),
    ] {
        assert_eq!(now(explain(asked(&other, body), &Profile::Raw, &stored)), part);
    }
    let first = r#"{"amount":1,"secret":"s3cret"}"#;
    let again = r#"{"amount":2,"secret":"another"}"#;
    assert_eq!(told(&Profile::Json, first, again), "the body in /amount, /secret");
    assert_eq!(
        told(&Profile::Json, first, r#"{"amount":1}"#),
        "the body, which lacks a field or has its parts in another order"
    );
    assert_eq!(told(&Profile::Raw, first, again), "the body");
}

proptest! {
    /// Whatever the bytes: a fingerprint, the same each time, and another one for other bytes where they are taken raw.
    #[test]
    fn any_body_has_one_fingerprint_under_every_profile(
        body in proptest::collection::vec(any::<u8>(), 0..200),
        kind in prop_oneof![
            Just("application/json"),
            Just("application/x-www-form-urlencoded"),
            Just("multipart/form-data; boundary=x"),
        ],
    ) {
        for profile in [
            Profile::Raw,
            Profile::Json,
            Profile::JsonOnly(pointers(&["/a"])),
            Profile::JsonExcept(pointers(&["/a"])),
            Profile::Form,
            Profile::Multipart,
        ] {
            let first = print(&profile, kind, &body);
            prop_assert_eq!(first, print(&profile, kind, &body));
            prop_assert_eq!(Fingerprint::from_bytes(&first.to_bytes()), Some(first));
            let mut other = body.clone();
            other.push(b'x');
            if first.version() == Profile::RAW {
                prop_assert_ne!(first, print(&profile, kind, &other));
            }
        }
    }
}
