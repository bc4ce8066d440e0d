//! Any bytes decode or fail; what decodes and is encoded again decodes to the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use semel_http::response::StoredResponse;

fuzz_target!(|data: &[u8]| {
    if let Ok(answer) = StoredResponse::decode(&Bytes::copy_from_slice(data)) {
        assert_eq!(StoredResponse::decode(&answer.encode()), Ok(answer));
    }
});
