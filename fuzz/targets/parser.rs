//! Fuzzes the parser with libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::parser(bytes));
