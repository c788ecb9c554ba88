//! An agent that begins with the objects that the one before it has saved: what it requests.

use std::path::Path;
use std::time::Duration;

use lb_rules::store::Store;
use lb_source::cluster::ObjectSaver;
use lb_source::{Cluster, Event, Extent, Source};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::server::{SERVICES, SLICES, Server};
use super::{Reported, SOON, client, lists, service, slice, watches, with_services};

/// Where the Service of the cluster itself is looked up. The test's server does not know that these are Services, too.
const DEFAULT_SERVICES: &str = "/api/v1/namespaces/default/services";

fn agent(server: &Server, state: &Path, is_restart: bool) -> (Cluster, ObjectSaver) {
    let cluster = Cluster::new(client(server), "node-a");
    cluster.with_restart(is_restart).with_state_directory(state)
}

fn store_events(store: &mut Store, event: Event) -> bool {
    match event {
        Event::Applied(object) => drop(store.apply(object)),
        Event::Deleted(reference) => drop(store.delete(&reference)),
        Event::Together(events) => {
            return events.into_iter().any(|event| store_events(store, event));
        }
        Event::Synced(Extent::All) => return true,
        Event::Synced(_) | Event::Problem(_) => {}
    }
    false
}

/// Runs an agent until it knows all objects, and saves them.
async fn saved(server: &Server) -> TempDir {
    let state = tempfile::tempdir().unwrap();
    let (cluster, saver) = agent(server, state.path(), false);
    let (sender, mut events) = mpsc::unbounded_channel();
    tokio::spawn(cluster.run(sender));
    let mut store = Store::default();
    let all = async { while !store_events(&mut store, events.recv().await.unwrap()) {} };
    timeout(SOON, all).await.expect("the objects of the test's server");
    saver.save(saver.versions().unwrap(), &store);
    drop(events);
    state
}

async fn cluster_of(uid: &str) -> Server {
    let server = with_services(&["web", "old"]).await;
    for path in [SERVICES, DEFAULT_SERVICES] {
        let mut kubernetes = service("kubernetes");
        kubernetes["metadata"]["uid"] = json!(uid);
        server.put(path, kubernetes);
    }
    for name in ["web", "old"] {
        let mut slice = slice(name);
        slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": name});
        server.put(SLICES, slice);
    }
    server
}

/// Reports of the next agent, and how often it listed Services and slices.
async fn restarted(server: &Server, state: &TempDir, is_restart: bool) -> (Reported, [usize; 2]) {
    let before = server.requests().len();
    let mut reported = Reported::of(agent(server, state.path(), is_restart).0);
    reported.until(|reported| reported.synced == 1).await;
    let requests = server.requests().split_off(before);
    (reported, [SERVICES, SLICES].map(|path| lists(&requests, path)))
}

#[tokio::test]
async fn a_restarted_agent_watches_from_where_the_one_before_it_ended() {
    let server = cluster_of("one").await;
    let state = saved(&server).await;
    let version = server.version();
    server.put(SERVICES, service("new"));
    server.remove(SERVICES, "default/old");
    server.remove(SLICES, "default/old");

    let before = server.requests().len();
    let (mut reported, listed) = restarted(&server, &state, true).await;
    assert_eq!(listed, [0, 0]);
    reported
        .until(|reported| reported.is_there("Service default/new") && reported.deleted.len() == 2)
        .await;
    reported.deleted.sort();
    assert_eq!(reported.deleted, ["EndpointSlice default/old", "Service default/old"]);
    let requests = server.requests().split_off(before);
    for path in [SERVICES, SLICES] {
        assert_eq!(watches(&requests, path), 1, "{path}");
        let watch = requests.iter().find(|request| request.path == path).unwrap();
        let from: u64 = watch.version().unwrap().parse().unwrap();
        assert!(from > 0 && from <= version.parse().unwrap(), "{path}: {watch:?}");
    }
    assert!(
        reported.is_there("Service default/web") && reported.is_there("EndpointSlice default/web")
    );
    // The file is of use once.
    assert_eq!(restarted(&server, &state, true).await.1, [1, 1]);
}

/// What a server has lost of its history is listed, without the pause of repeated lists, and what went meanwhile goes.
#[tokio::test]
async fn a_server_that_has_forgotten_the_version_is_listed() {
    let server = cluster_of("one").await;
    let state = saved(&server).await;
    server.remove(SERVICES, "default/old");
    server.forget();
    let before = server.requests().len();
    let (mut reported, _) = restarted(&server, &state, true).await;
    reported.until(|reported| !reported.deleted.is_empty()).await;
    assert_eq!(reported.deleted, ["Service default/old"]);
    assert_eq!(lists(&server.requests().split_off(before), SERVICES), 1);
}

#[tokio::test]
async fn objects_of_another_cluster_or_of_another_life_of_the_node_are_not_used() {
    let one = cluster_of("one").await;
    let other = cluster_of("other").await;
    let state = saved(&one).await;
    let (reported, listed) = restarted(&other, &state, true).await;
    assert_eq!(listed, [1, 1]);
    assert_eq!(reported.there.len(), 6);
    // Without maps of an earlier agent, this is no restart.
    let state = saved(&one).await;
    assert_eq!(restarted(&one, &state, false).await.1, [1, 1]);
}

/// A server that does not say which cluster it is of delays the list, and no more.
#[tokio::test]
async fn a_cluster_that_cannot_be_asked_which_it_is_is_listed() {
    let server = cluster_of("one").await;
    let state = saved(&server).await;
    server.refuse(DEFAULT_SERVICES, 403);
    assert_eq!(restarted(&server, &state, true).await.1, [1, 1]);
}

/// The error of an object that cannot be read would not be reported again by a watch from a later version.
#[tokio::test]
async fn while_an_object_cannot_be_read_nothing_is_saved() {
    let server = cluster_of("one").await;
    let mut wrong = service("wrong");
    wrong["spec"] = json!({"ports": [{"port": "http"}]});
    server.put(SERVICES, wrong);
    let state = tempfile::tempdir().unwrap();
    let (cluster, saver) = agent(&server, state.path(), true);
    let mut reported = Reported::of(cluster);
    reported.until(|reported| reported.synced == 1).await;
    assert_eq!(saver.versions(), None);
    server.put(SERVICES, service("wrong"));
    reported.until(|reported| reported.is_there("Service default/wrong")).await;
    let versions = async {
        while saver.versions().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, versions).await.expect("versions once all can be read");
}
