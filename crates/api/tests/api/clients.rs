//! The API used through kube-rs, like the agent does.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use lb_api::http::ApiLimits;
use lb_api::storage::ChangeWindow;
use serde_json::json;

use super::server::TestServer;

fn service(name: &str) -> Service {
    serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}
    }))
    .unwrap()
}

#[tokio::test]
async fn a_watch_reports_every_change_after_a_list() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    services.create(&PostParams::default(), &service("a")).await.unwrap();
    let listed = services.list(&ListParams::default()).await.unwrap();
    let revision = listed.metadata.resource_version.unwrap();
    assert_eq!(listed.items.len(), 1);

    let patch = Patch::Merge(json!({"metadata": {"labels": {"x": "y"}}}));
    services.patch("a", &PatchParams::default(), &patch).await.unwrap();
    services.create(&PostParams::default(), &service("b")).await.unwrap();
    services.delete("a", &DeleteParams::default()).await.unwrap();
    let watch = services.watch(&WatchParams::default(), &revision).await.unwrap();
    let events: Vec<String> = watch.take(3).map_ok(described).try_collect().await.unwrap();
    assert_eq!(events, ["modified a", "added b", "deleted a"]);
}

#[tokio::test]
async fn a_watch_by_label_reports_objects_that_start_or_stop_matching() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    services.create(&PostParams::default(), &service("a")).await.unwrap();
    let params = WatchParams::default().labels("x=y");
    let mut watch = services.watch(&params, "0").await.unwrap().boxed();
    for label in [json!("y"), json!("z")] {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"x": label}}}));
        services.patch("a", &PatchParams::default(), &patch).await.unwrap();
    }
    assert_eq!(described(watch.next().await.unwrap().unwrap()), "added a");
    assert_eq!(described(watch.next().await.unwrap().unwrap()), "deleted a");
}

#[tokio::test]
async fn a_watch_from_before_the_window_fails_with_410() {
    let window = ChangeWindow { changes: 4, bytes: 1 << 20 };
    let server = TestServer::start_with(window, ApiLimits::default()).await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    for name in ["a", "b", "c", "d", "e"] {
        services.create(&PostParams::default(), &service(name)).await.unwrap();
    }
    let mut watch = services.watch(&WatchParams::default(), "1").await.unwrap().boxed();
    match watch.next().await.unwrap().unwrap() {
        WatchEvent::Error(status) => assert_eq!(status.code, 410, "{status:?}"),
        other => panic!("{other:?}"),
    }
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn a_streamed_list_ends_with_an_annotated_bookmark() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    services.create(&PostParams::default(), &service("a")).await.unwrap();
    let params = WatchParams::default().initial_events();
    let mut watch = services.watch(&params, "0").await.unwrap().boxed();
    assert_eq!(described(watch.next().await.unwrap().unwrap()), "added a");
    match watch.next().await.unwrap().unwrap() {
        WatchEvent::Bookmark(bookmark) => {
            assert_eq!(bookmark.metadata.annotations["k8s.io/initial-events-end"], "true");
        }
        other => panic!("{other:?}"),
    }
    services.create(&PostParams::default(), &service("b")).await.unwrap();
    assert_eq!(described(watch.next().await.unwrap().unwrap()), "added b");
}

#[tokio::test]
async fn a_watch_ends_after_its_timeout() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    let params = WatchParams::default().timeout(1);
    let watch = services.watch(&params, "0").await.unwrap();
    let events: Vec<String> = watch.map_ok(described).try_collect().await.unwrap();
    // Only the final bookmark.
    assert_eq!(events, ["bookmark"]);
}

#[tokio::test]
async fn a_paginated_list_is_one_snapshot() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    for name in ["a", "b", "c"] {
        services.create(&PostParams::default(), &service(name)).await.unwrap();
    }
    let first = services.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(1));
    services.delete("c", &DeleteParams::default()).await.unwrap();
    services.create(&PostParams::default(), &service("d")).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let rest = services.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    let names: Vec<_> =
        rest.items.iter().filter_map(|item| item.metadata.name.as_deref()).collect();
    assert_eq!(names, ["c"]);
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);
    assert!(rest.metadata.continue_.unwrap_or_default().is_empty());
}

/// As many as there were at the revision of the list, whatever is created and deleted between the pages.
#[tokio::test]
async fn each_page_says_how_many_objects_are_behind_it() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        services.create(&PostParams::default(), &service(name)).await.unwrap();
    }
    let (mut remaining, mut names) = (Vec::new(), String::new());
    let mut params = ListParams::default().limit(2);
    loop {
        let page = services.list(&params).await.unwrap();
        remaining.push(page.metadata.remaining_item_count);
        names.extend(page.items.iter().filter_map(|item| item.metadata.name.as_deref()));
        let token = page.metadata.continue_.unwrap_or_default();
        if token.is_empty() {
            break;
        }
        let new = format!("h-{}", remaining.len());
        services.create(&PostParams::default(), &service(&new)).await.unwrap();
        params = ListParams::default().limit(2).continue_token(&token);
    }
    assert_eq!(names, "abcdefg");
    assert_eq!(remaining, [Some(5), Some(3), Some(1), None]);
}

#[tokio::test]
async fn a_list_without_its_snapshot_fails_with_410() {
    let window = ChangeWindow { changes: 2, bytes: 1 << 20 };
    let server = TestServer::start_with(window, ApiLimits::default()).await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    for name in ["a", "b"] {
        services.create(&PostParams::default(), &service(name)).await.unwrap();
    }
    let first = services.list(&ListParams::default().limit(1)).await.unwrap();
    for name in ["c", "d", "e"] {
        services.create(&PostParams::default(), &service(name)).await.unwrap();
    }
    let token = first.metadata.continue_.unwrap();
    let error = services.list(&ListParams::default().continue_token(&token)).await.unwrap_err();
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn an_update_of_an_old_revision_is_a_conflict() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    let mut old = services.create(&PostParams::default(), &service("a")).await.unwrap();
    let patch = Patch::Merge(json!({"metadata": {"labels": {"x": "y"}}}));
    services.patch("a", &PatchParams::default(), &patch).await.unwrap();
    old.metadata.labels = None;
    let error = services.replace("a", &PostParams::default(), &old).await.unwrap_err();
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!(status.reason, "Conflict");
}

#[tokio::test]
async fn a_write_without_changes_keeps_the_revision() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    let created = services.create(&PostParams::default(), &service("a")).await.unwrap();
    let replaced = services.replace("a", &PostParams::default(), &created).await.unwrap();
    assert_eq!(created.metadata.resource_version, replaced.metadata.resource_version);
}

#[tokio::test]
async fn endpoints_of_a_service_without_a_selector_are_mirrored() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let endpoints: Api<Endpoints> = Api::default_namespaced(client.clone());
    let slices: Api<EndpointSlice> = Api::default_namespaced(client);
    let mut watch = slices.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    services.create(&PostParams::default(), &service("web")).await.unwrap();
    let written: Endpoints = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "subsets": [{"addresses": [{"ip": "10.244.1.10"}], "ports": [{"port": 8080}]}],
    }))
    .unwrap();
    endpoints.create(&PostParams::default(), &written).await.unwrap();
    let WatchEvent::Added(slice) = watch.next().await.unwrap().unwrap() else { panic!() };
    assert_eq!(slice.metadata.labels.unwrap()["kubernetes.io/service-name"], "web");
    assert_eq!(slice.endpoints.unwrap()[0].addresses, ["10.244.1.10"]);

    let patch = Patch::Merge(json!({"subsets": [
        {"addresses": [{"ip": "10.244.1.11"}], "ports": [{"port": 8080}]}
    ]}));
    endpoints.patch("web", &PatchParams::default(), &patch).await.unwrap();
    let WatchEvent::Modified(slice) = watch.next().await.unwrap().unwrap() else { panic!() };
    assert_eq!(slice.endpoints.unwrap()[0].addresses, ["10.244.1.11"]);

    endpoints.delete("web", &DeleteParams::default()).await.unwrap();
    let event = watch.next().await.unwrap().unwrap();
    assert!(described(event).starts_with("deleted"));
}

/// Slices cannot contain loopback addresses, so the server listens on another address of this
/// machine.
#[tokio::test]
async fn a_slice_with_a_health_check_is_kept_up_to_date() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get("node-1").await.unwrap();
    let addresses = node.status.unwrap().addresses.unwrap();
    let v4 = addresses.iter().find(|one| one.type_ == "InternalIP" && one.address.contains('.'));
    let Some(address) = v4.map(|one| one.address.clone()) else {
        eprintln!("this machine has no address but loopback: nothing is tested by it");
        return;
    };
    let backend = tokio::net::TcpListener::bind(format!("{address}:0")).await.unwrap();
    let port = backend.local_addr().unwrap().port();
    let slices: Api<EndpointSlice> = Api::default_namespaced(client);
    let slice = serde_json::from_value(json!({
        "metadata": {"name": "checked", "annotations": {"millrace.io/health-check": "tcp"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": false}}],
        "ports": [{"port": port}],
    }))
    .unwrap();
    slices.create(&PostParams::default(), &slice).await.unwrap();
    let mut watch = slices.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let mut becomes = async |ready: bool| loop {
        let event = watch.next().await.unwrap().unwrap();
        if let WatchEvent::Added(slice) | WatchEvent::Modified(slice) = event {
            let conditions = slice.endpoints.unwrap()[0].conditions.clone().unwrap();
            if conditions.ready == Some(ready) {
                return;
            }
        }
    };
    becomes(true).await;
    drop(backend);
    becomes(false).await;
}

fn described<T: kube::ResourceExt>(event: WatchEvent<T>) -> String {
    match event {
        WatchEvent::Added(object) => format!("added {}", object.name_any()),
        WatchEvent::Modified(object) => format!("modified {}", object.name_any()),
        WatchEvent::Deleted(object) => format!("deleted {}", object.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(status) => format!("error {}", status.code),
    }
}
