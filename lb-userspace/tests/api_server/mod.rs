//! Starts `millrace standalone --serve-api-only`, and connects to it.

// Each test program uses a part.
#![allow(dead_code)]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Starts the server with a data directory, and waits until it serves.
pub async fn start(directory: &Path) -> Child {
    let process = Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(["standalone", "--serve-api-only", "--api-bind-address", "127.0.0.1:0", "--data-dir"])
        .arg(directory)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    serving(process).await
}

/// Waits until the started server serves.
pub async fn serving(mut process: Child) -> Child {
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let mut log = String::new();
    let serving = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("serving") {
                return;
            }
            log.push_str(&line);
        }
        panic!("it ended: {log}");
    };
    tokio::time::timeout(Duration::from_secs(120), serving).await.expect("it starts");
    // Its later output must be read, too.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    process
}

pub async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap().try_into().unwrap()
}
