//! Fuzzes what a BFD peer sends with libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::bfd::fuzz_bfd_session(bytes);
});
