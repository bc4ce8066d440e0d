#![no_main]

#[path = "../checks/key_header.rs"]
mod key_header;

libfuzzer_sys::fuzz_target!(|data: &[u8]| key_header::check(data));
