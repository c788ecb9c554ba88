//! `deploy/`: what is applied to clusters is what Kubernetes understands, and both ways to it lead
//! to the same.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod document;
mod helm;
// The tests of the API have it, too.
#[path = "../../../lb-api/tests/api/kubectls.rs"]
mod kubectls;
mod kustomize;
mod monitoring;
mod readme;
mod versions;

use std::path::{Path, PathBuf};

/// A folder of `deploy/`.
fn deploy(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(folder)
}
