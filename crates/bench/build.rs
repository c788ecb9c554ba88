//! Says where the benchmark's BPF object is; without one, the benchmark says so when it is run.

use std::env;
use std::fs;
use std::path::PathBuf;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let object = manifest.join("../../target/bpf/bench.bpf.o");
    println!("cargo::rerun-if-changed={}", object.display());
    let path = fs::canonicalize(&object).unwrap_or_else(|_| {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
        let empty = out.join("empty.bpf.o");
        fs::write(&empty, []).expect("the output directory is writable");
        empty
    });
    println!("cargo::rustc-env=MILLRACE_BENCH_OBJECT={}", path.display());
}
