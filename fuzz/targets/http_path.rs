//! Fuzzes paths of the HTTP proxy's requests with libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::http::fuzz_path(bytes);
});
