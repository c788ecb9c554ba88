//! Kinds of pools that a cluster may lack.

use lb_rules::kinds::METALLB_NAMESPACE;
use lb_source::Extent;
use serde_json::{Value, json};

use super::server::Server;
use super::{Reported, node};

pub const POOLS: &str = "/apis/millrace.io/v1alpha1/addresspools";

pub const PEERS: &str = "/apis/millrace.io/v1alpha1/bgppeers";
/// Only one Secret is read.
pub const PASSWORDS: &str = "/api/v1/namespaces/default/secrets";
pub const ALL_OF_METALLB: [&str; 6] = [
    "bfdprofiles",
    "bgpadvertisements",
    "bgppeers",
    "communities",
    "ipaddresspools",
    "l2advertisements",
];

/// The path of a kind of MetalLB.
pub fn of_metallb(resource: &str) -> String {
    let version = if resource == "bgppeers" { "v1beta2" } else { "v1beta1" };
    format!("/apis/metallb.io/{version}/namespaces/{METALLB_NAMESPACE}/{resource}")
}

pub fn pool(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name}, "spec": {"addresses": ["192.0.2.0/24"]}})
}

async fn without_pools(status: u16) -> Server {
    let server = Server::start().await;
    server.put(super::NODES, node("node-a"));
    let own = [POOLS, PEERS, PASSWORDS].map(str::to_owned);
    for path in own.into_iter().chain(ALL_OF_METALLB.map(of_metallb)) {
        server.refuse(&path, status);
    }
    server
}

/// 403: an older role does not grant them.
#[tokio::test]
async fn nothing_waits_for_kinds_that_are_not_installed_and_they_are_found_later() {
    for status in [403, 404] {
        let server = without_pools(status).await;
        let mut reported = Reported::synced(&server).await;
        assert!(reported.problems.is_empty(), "{:?}", reported.problems);
        server.put(POOLS, pool("a"));
        server.refuse(POOLS, 200);
        reported.until(|reported| reported.is_there("AddressPool a")).await;
    }
}

/// As a server does that is overloaded, or cannot convert the objects to the version that is read.
#[tokio::test]
async fn services_do_not_wait_for_kinds_that_the_server_fails_to_list() {
    for status in [429, 500] {
        let server = without_pools(status).await;
        let mut reported = Reported::watching(&server);
        reported.until(|reported| reported.extent == Some(Extent::Services)).await;
        // Announcements do: what an earlier agent announced is not known to be wanted no longer.
        for path in [POOLS.to_owned(), of_metallb("ipaddresspools"), of_metallb("l2advertisements")]
        {
            server.asked(|all| all.iter().filter(|request| request.path == path).count() > 1).await;
            assert_eq!(reported.so_far().extent, Some(Extent::Services));
            server.refuse(&path, 200);
        }
        reported.until(|reported| reported.extent == Some(Extent::Pools)).await;
        for path in [PEERS, PASSWORDS] {
            server.refuse(path, 200);
        }
        for resource in ["bfdprofiles", "bgpadvertisements", "bgppeers", "communities"] {
            assert_eq!(reported.so_far().extent, Some(Extent::Pools));
            server.refuse(&of_metallb(resource), 200);
        }
        reported.until(|reported| reported.synced == 1).await;
    }
}

/// Something in front of the server may say that there is no such path.
#[tokio::test]
async fn pools_stay_while_the_server_denies_that_there_is_such_a_kind() {
    let server = Server::start().await;
    server.put(super::NODES, node("node-a"));
    server.put(POOLS, pool("a"));
    let mut reported = Reported::synced(&server).await;
    assert!(reported.is_there("AddressPool a"));
    server.refuse(POOLS, 404);
    server.hang_up();
    server
        .asked(|all| all.iter().any(|request| request.path == POOLS && request.status == 404))
        .await;
    server.refuse(POOLS, 200);
    server.put(POOLS, pool("b"));
    reported.until(|reported| reported.is_there("AddressPool b")).await;
    assert!(reported.is_there("AddressPool a"));
    assert!(reported.deleted.is_empty(), "{:?}", reported.deleted);
}
