//! Fuzzes the whole data plane with libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::pipeline(bytes));
