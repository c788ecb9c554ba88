//! `millrace standalone` on a real disk that becomes full: reads still work, readiness reports it,
//! and writes resume without a restart when there is room again. Also: backup and restore.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod api_server;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::process::Command;

use api_server::{client, serving, start};

/// Mounts a small file system, fills most of it, and frees space on request.
const FULL_DISK: &str = r#"
mount -t tmpfs -o size=6m,mode=700 none "$1/data"
head -c 3000000 /dev/zero > "$1/data/filler"
(while [ ! -e "$1/make-room" ]; do sleep 0.1; done; rm "$1/data/filler") &
mkdir "$1/data/store"
exec "$0" standalone --serve-api-only --api-bind-address 127.0.0.1:0 \
    --data-dir "$1/data/store" --write-kubeconfig "$1/kubeconfig"
"#;

fn secret(name: &str, size: usize) -> Secret {
    let key = "x".repeat(size);
    serde_json::from_value(json!({"metadata": {"name": name}, "stringData": {"key": key}})).unwrap()
}

async fn get(client: &Client, path: &str) -> Result<String, kube::Error> {
    client.request_text(axum::http::Request::get(path).body(Vec::new()).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_writes_only_and_only_while_it_is_full() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can mount a small file system");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("data")).unwrap();
    let process = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec", FULL_DISK])
        .arg(env!("CARGO_BIN_EXE_millrace"))
        .arg(directory.path())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let _process = serving(process).await;
    let client = client(&directory.path().join("kubeconfig")).await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());

    let mut stored = 0;
    let error = loop {
        let secret = secret(&format!("s{stored}"), 100_000);
        match secrets.create(&PostParams::default(), &secret).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100, "the disk is never full");
    };
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!(status.code, 507, "{status:?}");
    assert!(status.message.contains("disk of the store is full"), "{status:?}");
    let listed = secrets.list(&ListParams::default()).await.unwrap();
    assert_eq!(listed.items.len(), stored);
    assert_eq!(get(&client, "/livez").await.unwrap(), "ok");

    std::fs::write(directory.path().join("make-room"), "").unwrap();
    let room = async {
        while get(&client, "/readyz").await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Readiness may have been reported just before it recovered from the last failure.
        while secrets.create(&PostParams::default(), &secret("after", 100_000)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), room).await.expect("writes resume");
    let listed = secrets.list(&ListParams::default()).await.unwrap();
    assert_eq!(listed.items.len(), stored + 1);
    let metrics = get(&client, "/metrics").await.unwrap();
    assert!(metrics.contains("millrace_api_storage_writable 1"), "{metrics}");
}

/// Runs a command on the data, and returns whether it succeeded and what it printed.
async fn run(directory: &Path, action: &str, file: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(["standalone", action]).arg(file).arg("--data-dir").arg(directory);
    let output = command.output().await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_the_running_server_is_restored_while_it_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let (data, backup) = (directory.path().join("data"), directory.path().join("backup"));
    let mut process = start(&data).await;
    let secrets: Api<Secret> = Api::default_namespaced(client(&data.join("kubeconfig")).await);
    secrets.create(&PostParams::default(), &secret("kept", 10)).await.unwrap();
    let (done, printed) = run(&data, "backup", &backup).await;
    assert!(done, "{printed}");
    secrets.delete("kept", &Default::default()).await.unwrap();
    let (done, printed) = run(&data, "restore", &backup).await;
    assert!(!done && printed.contains("in use"), "{printed}");
    process.start_kill().unwrap();
    process.wait().await.unwrap();

    // A backup of a stopped server, of the state without the object.
    let (done, printed) = run(&data, "backup", &directory.path().join("later")).await;
    assert!(done, "{printed}");
    let (done, printed) = run(&data, "restore", &backup).await;
    assert!(done, "{printed}");
    let _process = start(&data).await;
    let secrets: Api<Secret> = Api::default_namespaced(client(&data.join("kubeconfig")).await);
    let names: Vec<_> =
        secrets.list(&ListParams::default()).await.unwrap().items.into_iter().collect();
    assert_eq!(names.len(), 1);
    assert_eq!(names[0].metadata.name.as_deref(), Some("kept"));
}
