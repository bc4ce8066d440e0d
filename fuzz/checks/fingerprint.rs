//! Any body has one fingerprint under every profile, and it can be stored.
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use semel_core::Fingerprint;
use semel_http::fingerprint::{Asked, of};
use semel_http::{Pointer, Profile};

/// Panics where it is not so.
pub(super) fn check(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    let (kind, profile) = match kind % 5 {
        0 => ("application/json", Profile::Json),
        1 => ("application/json", Profile::JsonOnly(pointers())),
        2 => ("application/json", Profile::JsonExcept(pointers())),
        3 => ("application/x-www-form-urlencoded", Profile::Form),
        _ => ("multipart/form-data; boundary=x", Profile::Multipart),
    };
    let request = http::Request::post("/").header("content-type", kind).body(());
    let (head, ()) = request.expect("a request").into_parts();
    let asked = Asked {
        head: &head,
        target: b"/",
        headers: &[],
        body,
    };
    let print = || {
        let Poll::Ready(print) = pin!(of(asked, &profile)).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("a whole body is read at once");
        };
        print
    };
    let first = print();
    assert_eq!(first, print());
    assert_eq!(Fingerprint::from_bytes(&first.to_bytes()), Some(first));
}

fn pointers() -> Vec<Pointer> {
    ["/a", "/b/0"]
        .map(|text| Pointer::new(text).expect("a pointer"))
        .into()
}
