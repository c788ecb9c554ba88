//! Fuzzes what a BGP peer sends with libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::bgp::fuzz_bgp_message(bytes);
});
