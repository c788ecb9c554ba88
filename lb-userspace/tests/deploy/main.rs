//! `deploy/`: what is applied to clusters is what Kubernetes understands, and both ways to it lead
//! to the same.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod document;
mod helm;
mod kustomize;
mod monitoring;

use std::path::{Path, PathBuf};

/// A folder of `deploy/`.
fn deploy(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(folder)
}
