//! `deploy/`: Kubernetes accepts all objects, and Helm and Kustomize produce the same ones.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod definitions;
mod document;
mod helm;
// Shared with the tests of the API.
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
