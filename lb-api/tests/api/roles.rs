//! Identities: what roles may do, reviews, and revocation.

use std::fmt::Debug;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use lb_api::http::{Authority, Limits, Role};
use lb_api::storage::Window;
use serde_json::{Value, json};

use super::server::TestServer;

fn code<T: Debug>(result: kube::Result<T>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

fn service(name: &str) -> Service {
    serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]},
    }))
    .unwrap()
}

#[tokio::test]
async fn a_viewer_reads_everything_but_secrets_and_writes_nothing() {
    let server = TestServer::start().await;
    let viewer = server.client_as("eve", Role::Viewer).await;
    let services: Api<Service> = Api::default_namespaced(viewer.clone());
    let secrets: Api<Secret> = Api::default_namespaced(viewer.clone());
    assert_eq!(code(services.list(&ListParams::default()).await), 200);
    let refused = services.create(&PostParams::default(), &service("web")).await.unwrap_err();
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
    let expected = "services is forbidden: User \"eve\" cannot create resource \"services\" in API \
                    group \"\" in the namespace \"default\": role viewer";
    assert_eq!(status.message, expected);
    assert_eq!(code(services.delete("web", &DeleteParams::default()).await), 403);
    assert_eq!(code(secrets.list(&ListParams::default()).await), 403);
    assert_eq!(code(secrets.get("web").await), 403);
    assert_eq!(code(get(&viewer, "/metrics").await), 200);
    assert_eq!(code(get(&viewer, "/millrace/backup").await), 403);
}

#[tokio::test]
async fn a_proxy_sees_only_secrets_with_certificates() {
    let server = TestServer::start().await;
    let all: Api<Secret> = Api::default_namespaced(server.client().await);
    for (name, type_) in [("password", "Opaque"), ("certificate", "kubernetes.io/tls")] {
        let secret = json!({
            "metadata": {"name": name}, "type": type_,
            "stringData": {"tls.crt": "", "tls.key": ""},
        });
        let secret = serde_json::from_value(secret).unwrap();
        all.create(&PostParams::default(), &secret).await.unwrap();
    }
    let seen: Api<Secret> = Api::default_namespaced(server.client_as("p", Role::Proxy).await);
    let names = |secrets: kube::api::ObjectList<Secret>| -> Vec<String> {
        secrets.items.into_iter().filter_map(|secret| secret.metadata.name).collect()
    };
    assert_eq!(names(seen.list(&ListParams::default()).await.unwrap()), ["certificate"]);
    let opaque = ListParams::default().fields("type=Opaque");
    assert!(names(seen.list(&opaque).await.unwrap()).is_empty());
    assert_eq!(code(seen.get("password").await), 403);
    assert_eq!(code(seen.get("certificate").await), 200);
    let mut watch = seen.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let Some(Ok(WatchEvent::Added(first))) = watch.next().await else { panic!("no object") };
    assert_eq!(first.metadata.name.as_deref(), Some("certificate"));
}

#[tokio::test]
async fn a_revoked_client_is_disconnected_and_others_are_not() {
    let server = TestServer::start().await;
    let client = server.client_as("mallory", Role::Administrator).await;
    let services: Api<Service> = Api::default_namespaced(client);
    let mut watch = services.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let authority = Authority::open(&server.directory.path().join("pki")).unwrap();
    assert_eq!(authority.issued().revoke("mallory").unwrap(), 1);
    // The watch ends, or fails, although nothing happens.
    let ended = async { while let Some(Ok(_)) = watch.next().await {} };
    let minute = std::time::Duration::from_secs(60);
    tokio::time::timeout(minute, ended).await.expect("it ends");
    assert!(services.list(&ListParams::default()).await.is_err());
    assert!(server.client().await.apiserver_version().await.is_ok());
}

#[tokio::test]
async fn reviews_match_what_requests_are_allowed() {
    let server = TestServer::start().await;
    let viewer = server.client_as("eve", Role::Viewer).await;
    let who = post(&viewer, "authentication.k8s.io/v1/selfsubjectreviews", json!({})).await;
    assert_eq!(who["status"]["userInfo"]["username"], "eve");
    let path = "authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (verb, resource, allowed) in
        [("list", "services", true), ("list", "secrets", false), ("delete", "services", false)]
    {
        let spec = json!({"spec": {"resourceAttributes": {"verb": verb, "resource": resource}}});
        let answer = post(&viewer, path, spec).await;
        assert_eq!(answer["status"]["allowed"], allowed, "{verb} {resource}");
    }
    let rules = json!({"spec": {"namespace": "default"}});
    let rules = post(&viewer, "authorization.k8s.io/v1/selfsubjectrulesreviews", rules).await;
    assert_eq!(rules["status"]["incomplete"], false);
    assert!(rules["status"]["resourceRules"].to_string().contains("services"), "{rules}");
}

#[tokio::test]
async fn the_agent_may_watch_and_report_but_not_change_services() {
    let server = TestServer::start().await;
    let agent = server.client_as("agent", Role::Agent).await;
    let services: Api<Service> = Api::all(agent.clone());
    assert_eq!(code(services.list(&ListParams::default()).await), 200);
    let own: Api<Service> = Api::default_namespaced(agent);
    assert_eq!(code(own.create(&PostParams::default(), &service("web")).await), 403);
}

#[tokio::test]
async fn a_proxy_holds_a_lease_in_its_namespace_only() {
    let server = TestServer::start().await;
    let proxy = server.client_as("p", Role::Proxy).await;
    let lease = json!({"metadata": {"name": "leader"}, "spec": {"holderIdentity": "p"}});
    let lease: Lease = serde_json::from_value(lease).unwrap();
    for (namespace, expected) in [("kube-system", 200), ("default", 403)] {
        let leases: Api<Lease> = Api::namespaced(proxy.clone(), namespace);
        assert_eq!(code(leases.create(&PostParams::default(), &lease).await), expected);
        assert_eq!(code(leases.get("leader").await), expected, "{namespace}");
        let spec = json!({"spec": {"resourceAttributes": {
            "verb": "update", "group": "coordination.k8s.io", "resource": "leases",
            "namespace": namespace,
        }}});
        let path = "authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = post(&proxy, path, spec).await;
        assert_eq!(answer["status"]["allowed"], expected == 200, "{namespace}");
    }
    // Everything else that an Ingress controller needs.
    for path in [
        "/api/v1/services",
        "/api/v1/secrets",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/networking.k8s.io/v1/ingresses",
        "/apis/networking.k8s.io/v1/ingressclasses",
    ] {
        assert_eq!(code(get(&proxy, path).await), 200, "{path}");
    }
    assert_eq!(code(get(&proxy, "/api/v1/configmaps").await), 403);
}

/// On all addresses, with a certificate for each of them.
#[tokio::test]
async fn a_server_on_other_addresses_has_a_certificate_for_them() {
    let (window, limits) = (Window::default(), Limits::default());
    let server = TestServer::start_at("0.0.0.0:0", window, limits, Vec::new()).await;
    let interfaces = nix::ifaddrs::getifaddrs().unwrap();
    let own = interfaces.filter_map(|one| Some(one.address?.as_sockaddr_in()?.ip()));
    for address in own {
        let mut config = server.config().await;
        let port = server.server.address.port();
        config.cluster_url = format!("https://{address}:{port}").parse().unwrap();
        // The name in the certificate must be the address.
        config.tls_server_name = None;
        let client: kube::Client = config.try_into().unwrap();
        client.apiserver_version().await.unwrap_or_else(|error| panic!("{address}: {error}"));
    }
}

async fn get(client: &kube::Client, path: &str) -> kube::Result<String> {
    client.request_text(hyper::Request::get(path).body(Vec::new()).unwrap()).await
}

async fn post(client: &kube::Client, path: &str, body: Value) -> Value {
    let request = hyper::Request::post(format!("/apis/{path}"))
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .unwrap();
    client.request(request).await.unwrap()
}
