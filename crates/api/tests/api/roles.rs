//! Identities: what roles may do, reviews, and revocation.

use std::fmt::Debug;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kube::Api;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use lb_api::http::{ApiLimits, CertificateAuthority, ClientRole};
use lb_api::storage::ChangeWindow;
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
    let viewer = server.client_as("eve", ClientRole::Viewer).await;
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
    let seen: Api<Secret> = Api::default_namespaced(server.client_as("p", ClientRole::Proxy).await);
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

/// Only administrators decide which Ingresses refer to which Secrets.
#[tokio::test]
async fn a_proxy_sees_a_secret_by_name_while_an_ingress_refers_to_it() {
    let server = TestServer::start().await;
    let admin = server.client().await;
    let all: Api<Secret> = Api::default_namespaced(admin.clone());
    for name in ["users", "password"] {
        let secret = json!({"metadata": {"name": name}, "stringData": {"auth": "x"}});
        let secret = serde_json::from_value(secret).unwrap();
        all.create(&PostParams::default(), &secret).await.unwrap();
    }
    let proxy = server.client_as("p", ClientRole::Proxy).await;
    let seen: Api<Secret> = Api::default_namespaced(proxy.clone());
    let by_name = |name: &str| {
        ListParams::default().fields(&format!("metadata.name={name},type!=kubernetes.io/tls"))
    };
    assert_eq!(code(seen.list(&by_name("users")).await), 403);
    assert_eq!(code(seen.get("users").await), 403);

    let ingress = json!({
        "metadata": {
            "name": "web",
            "annotations": {"nginx.ingress.kubernetes.io/auth-secret": "users"},
            "labels": {"a": "b"}, "finalizers": ["example.org/f"],
        },
        "spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}},
    });
    let ingress: Ingress = serde_json::from_value(ingress).unwrap();
    let ingresses: Api<Ingress> = Api::default_namespaced(admin);
    let ingress = ingresses.create(&PostParams::default(), &ingress).await.unwrap();
    assert_eq!(seen.list(&by_name("users")).await.unwrap().items.len(), 1);
    assert_eq!(code(seen.get("users").await), 200);
    let watched = WatchParams::default().fields("metadata.name=users");
    let mut watch = seen.watch(&watched, "0").await.unwrap().boxed();
    let Some(Ok(WatchEvent::Added(first))) = watch.next().await else { panic!("no object") };
    assert_eq!(first.metadata.name.as_deref(), Some("users"));
    // No others, however it asks.
    for fields in [
        "metadata.name=password",
        "metadata.name=password,metadata.name=users",
        "metadata.name!=users",
        "metadata.name=",
    ] {
        let listed = seen.list(&ListParams::default().fields(fields)).await;
        assert!(listed.is_err() || listed.unwrap().items.is_empty(), "{fields}");
    }
    assert!(seen.list(&ListParams::default()).await.unwrap().items.is_empty());
    assert_eq!(code(seen.get("password").await), 403);
    let elsewhere: Api<Secret> = Api::namespaced(proxy.clone(), "kube-system");
    assert_eq!(code(elsewhere.list(&by_name("users")).await), 403);

    // It cannot make the Ingress refer to another one.
    let written: Api<Ingress> = Api::default_namespaced(proxy);
    let refer = json!({"nginx.ingress.kubernetes.io/auth-secret": "password"});
    let status = |address: &str| json!({"loadBalancer": {"ingress": [{"ip": address}]}});
    let merge = json!({
        "metadata": {"annotations": refer, "labels": null, "finalizers": [], "managedFields": [{}]},
        "status": status("192.0.2.1"),
    });
    let apply = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"annotations": refer}, "status": status("192.0.2.3"),
    });
    let operations = json!([
        {"op": "replace", "path": "/metadata/annotations", "value": refer},
        {"op": "remove", "path": "/metadata/labels"},
        {"op": "replace", "path": "/status", "value": status("192.0.2.4")},
    ]);
    let parameters = PatchParams::apply("p").force();
    let plain = PatchParams::default();
    let mut results = vec![
        written.patch_status("web", &plain, &Patch::Merge(&merge)).await.unwrap(),
        written.patch_status("web", &plain, &Patch::Strategic(&merge)).await.unwrap(),
        written.patch_status("web", &parameters, &Patch::Apply(&apply)).await.unwrap(),
        written
            .patch_status(
                "web",
                &plain,
                &Patch::Json::<()>(serde_json::from_value(operations).unwrap()),
            )
            .await
            .unwrap(),
    ];
    let mut replaced = results[0].clone();
    replaced.metadata.resource_version = None;
    replaced.metadata.annotations = Some(serde_json::from_value(refer).unwrap());
    replaced.metadata.finalizers = None;
    results.push(written.replace_status("web", &PostParams::default(), &replaced).await.unwrap());
    for result in results {
        let (new, old) = (&result.metadata, &ingress.metadata);
        assert_eq!(new.annotations, old.annotations);
        assert_eq!((&new.labels, &new.finalizers), (&old.labels, &old.finalizers));
        assert!(result.status.is_some());
        let managers = serde_json::to_string(&new.managed_fields).unwrap();
        assert!(managers.contains("unknown") && !managers.contains("\"manager\":\"p\",\"operation\":\"Apply\",\"apiVersion\":\"networking.k8s.io/v1\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:metadata"), "{managers}");
    }
    assert_eq!(code(seen.get("password").await), 403);
}

/// Like a real API server: cloud controllers set finalizers in this way.
#[tokio::test]
async fn an_administrator_changes_metadata_with_the_status() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    services.create(&PostParams::default(), &service("web")).await.unwrap();
    let patch =
        json!({"metadata": {"finalizers": ["service.kubernetes.io/load-balancer-cleanup"]}});
    let patch = Patch::Merge(&patch);
    let patched = services.patch_status("web", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.metadata.finalizers.unwrap().len(), 1);
    // The agent may write the status only.
    let agents: Api<Service> =
        Api::default_namespaced(server.client_as("agent", ClientRole::Agent).await);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}, "finalizers": null}}));
    let patched = agents.patch_status("web", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.metadata.annotations, None);
    assert_eq!(patched.metadata.finalizers.unwrap().len(), 1);
}

#[tokio::test]
async fn a_revoked_client_is_disconnected_and_others_are_not() {
    let server = TestServer::start().await;
    let client = server.client_as("mallory", ClientRole::Administrator).await;
    let services: Api<Service> = Api::default_namespaced(client);
    let mut watch = services.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let authority = CertificateAuthority::open(&server.directory.path().join("pki")).unwrap();
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
    let viewer = server.client_as("eve", ClientRole::Viewer).await;
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
    let agent = server.client_as("agent", ClientRole::Agent).await;
    let services: Api<Service> = Api::all(agent.clone());
    assert_eq!(code(services.list(&ListParams::default()).await), 200);
    let own: Api<Service> = Api::default_namespaced(agent);
    assert_eq!(code(own.create(&PostParams::default(), &service("web")).await), 403);
}

#[tokio::test]
async fn a_proxy_holds_a_lease_in_its_namespace_only() {
    let server = TestServer::start().await;
    let proxy = server.client_as("p", ClientRole::Proxy).await;
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
    let (window, limits) = (ChangeWindow::default(), ApiLimits::default());
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
