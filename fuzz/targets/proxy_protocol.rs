//! Fuzzes the PROXY protocol with libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::http::proxy_protocol(bytes);
});
