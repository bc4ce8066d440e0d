//! The fuzz targets' checks over bytes that a test can afford: they still compile, and hold.

#![allow(clippy::expect_used, reason = "a panic here is a failed test")]

use proptest::prelude::*;

#[path = "../../../../fuzz/checks/fingerprint.rs"]
mod fingerprint;
#[path = "../../../../fuzz/checks/key_header.rs"]
mod key_header;
#[path = "../../../../fuzz/checks/stored_response.rs"]
mod stored_response;

proptest! {
    #[test]
    fn what_the_fuzz_targets_check_holds_for_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        fingerprint::check(&data);
        key_header::check(&data);
        stored_response::check(&data);
    }

    #[test]
    fn and_for_bytes_that_look_like_the_real_thing(
        kind in 0_u8..5,
        body in "(\\{\"[ab]\": ?[0-9a-z\"\\[{:,}\\]]{0,40}\\}|a=[a-z%0-9+&=]{0,40}|--x\r\n[A-Za-z-]{1,20}: [a-z;=\"]{1,30}\r\n\r\n[a-z]{0,20}\r\n--x--)",
        header in "\"?[ -~]{0,40}\"?",
    ) {
        fingerprint::check(&[&[kind], body.as_bytes()].concat());
        key_header::check(header.as_bytes());
    }
}
