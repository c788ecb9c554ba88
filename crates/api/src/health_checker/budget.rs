//! Measures what 10,000 endpoints that are probed every two seconds cost:
//!
//! ```console
//! $ cargo test --release -p lb-api --lib health_checker::budget -- --ignored --nocapture
//! ```
//!
//! The checker has a thread of its own, whose processor time counts. It includes what the kernel
//! does for the server's side of each connection, as these are on loopback: read it as an upper
//! bound.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

use super::slice::tests::api;
use super::{run_health_checker, servers};
use crate::kinds;
use crate::operations::storage_key;

const SLICES: usize = 10;
/// Of each slice.
const ENDPOINTS: usize = 1000;
const MEASURED_DURATION: Duration = Duration::from_secs(20);

#[test]
#[ignore = "takes two minutes; prints figures"]
fn ten_thousand_endpoints() {
    println!("\n| check | probes a second | processor time, % of one CPU | us a probe | unready |");
    println!("| --- | --- | --- | --- | --- |");
    for check in ["tcp", "http:/", "https:/", "grpc"] {
        measure(check);
    }
}

fn measure(check: &str) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let protocol = check.split(':').next().unwrap().to_owned();
    let counter = servers::Counter::default();
    let counted = counter.clone();
    // The servers are on a thread of their own, until the process ends.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let address = servers::start_server_on_all_addresses(&protocol, counted).await;
            sender.send(address).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let address: SocketAddr = receiver.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let api = api(directory.path());
        let kind = kinds::find_kind("discovery.k8s.io/v1", "EndpointSlice").unwrap();
        let all: Vec<(String, Value)> = (0..SLICES)
            .map(|number| {
                let name = format!("s{number}");
                (storage_key(kind, Some("default"), &name), slice(number, check, address.port()))
            })
            .collect();
        // Not through the API, which refuses loopback addresses.
        let written = api.storage().write(move |transaction| {
            for (key, slice) in all {
                transaction.put(&key, slice);
            }
            Ok::<_, std::convert::Infallible>(())
        });
        written.await.unwrap().unwrap();
        let checker = tokio::spawn(run_health_checker(api.clone()));
        // Until every endpoint has been probed, and has a session.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (used, probes, began) = (used(), counter.get(), Instant::now());
        tokio::time::sleep(MEASURED_DURATION).await;
        let (used, probes) = (self::used() - used, counter.get() - probes);
        let seconds = began.elapsed().as_secs_f64();
        let unready: usize = (0..SLICES)
            .map(|number| {
                let key = storage_key(kind, Some("default"), &format!("s{number}"));
                let slice = api.storage().get(&key).unwrap();
                let endpoints = slice.object()["endpoints"].as_array().unwrap().clone();
                endpoints.iter().filter(|one| one["conditions"]["ready"] == false).count()
            })
            .sum();
        println!(
            "| {check} | {:.0} | {:.0} | {:.0} | {unready} |",
            probes as f64 / seconds,
            100.0 * used / seconds,
            1e6 * used / probes as f64,
        );
        checker.abort();
    });
}

/// All addresses are on loopback, and lead to one server.
fn slice(number: usize, check: &str, port: u16) -> Value {
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|index| {
            let address = format!("127.1.{}.{}", number * 4 + index / 250, index % 250 + 1);
            json!({"addresses": [address]})
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("s{number}"), "namespace": "default", "uid": "u",
            "annotations": {"millrace.io/health-check": check}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": port}],
    })
}

/// The processor time of this thread in seconds.
fn used() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}
