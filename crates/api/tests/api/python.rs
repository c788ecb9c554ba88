//! The Kubernetes project's Python client, from PyPI: `cargo xtask prerequisites` installs it
//! under `target/python`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::TestServer;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/python/client.py");

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_works_as_on_a_cluster() {
    let Some(python) = python() else {
        eprintln!("there is no Python with the package kubernetes: nothing is tested by it");
        return;
    };
    let server = TestServer::start().await;
    let kubeconfig = server.server.kubeconfig.clone();
    let mut command = Command::new(python);
    command.arg(SCRIPT).arg(kubeconfig);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stdout.contains("done"), "{stdout}{wrong}");
}

fn python() -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    let candidates = env::var_os("MILLRACE_PYTHON").map(PathBuf::from);
    candidates.into_iter().chain([installed, "python3".into()]).find(|python| {
        let imported = Command::new(python).args(["-c", "import kubernetes"]).output();
        imported.is_ok_and(|output| output.status.success())
    })
}
