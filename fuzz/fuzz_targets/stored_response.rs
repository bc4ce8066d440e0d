#![no_main]

#[path = "../checks/stored_response.rs"]
mod stored_response;

libfuzzer_sys::fuzz_target!(|data: &[u8]| stored_response::check(data));
