#![no_main]

#[path = "../checks/fingerprint.rs"]
mod fingerprint;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fingerprint::check(data));
