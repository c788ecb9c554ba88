//! `deploy/`: Kubernetes accepts all objects, and Helm and Kustomize produce the same ones.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod console;
mod definitions;
mod document;
mod helm;
// Shared with the tests of the API.
#[path = "../../../crates/api/tests/api/kubectls.rs"]
mod kubectls;
mod kustomize;
mod monitoring;
mod readme;
mod versions;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// What a command prints that reads a value.
fn output_for(command: &mut Command, value: &Value) -> Output {
    let all = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = all.spawn().unwrap();
    child.stdin.take().unwrap().write_all(value.to_string().as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// A folder of `deploy/`.
fn deploy(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(folder)
}
