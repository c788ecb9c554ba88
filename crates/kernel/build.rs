//! Says which BPF object the agent carries. Building the agent must work in an editor, without
//! the BPF toolchain: then it carries an empty one, and says so when it is run.

use std::env;
use std::fs::{self, File};
use std::path::PathBuf;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let object = manifest.join("../../target/bpf/millrace.bpf.o");
    println!("cargo::rerun-if-changed={}", object.display());

    // `cargo xtask` holds this lock while it builds the object, at the same time as this crate's dependencies.
    let lock = File::open(manifest.join("../../target/bpf/lock"));
    let _lock = lock.and_then(|lock| lock.lock_shared().map(|()| lock));

    let path = match fs::canonicalize(&object) {
        Ok(path) => path,
        Err(_) => {
            let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
            let empty = out.join("empty.bpf.o");
            fs::write(&empty, []).expect("the output directory is writable");
            empty
        }
    };
    println!("cargo::rustc-env=MILLRACE_BPF_OBJECT={}", path.display());
}
