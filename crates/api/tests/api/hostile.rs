//! Clients that lack a certificate, exceed limits, or stall.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::Empty;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Api;
use kube::api::{ListParams, PostParams, WatchParams};
use kube::client::ConfigExt;
use lb_api::http::ApiLimits;
use lb_api::storage::ChangeWindow;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::raw::connect;
use super::server::TestServer;

#[tokio::test]
async fn clients_without_a_certificate_are_refused() {
    let server = TestServer::start().await;
    let mut kubeconfig = kube::config::Kubeconfig::read_from(&server.server.kubeconfig).unwrap();
    let user = kubeconfig.auth_infos[0].auth_info.as_mut().unwrap();
    user.client_certificate_data = None;
    user.client_key_data = None;
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    let anonymous: kube::Client = config.try_into().unwrap();
    assert!(anonymous.apiserver_version().await.is_err());
    assert!(server.client().await.apiserver_version().await.is_ok());
}

#[tokio::test]
async fn only_the_owner_can_read_the_kubeconfig() {
    use std::os::unix::fs::PermissionsExt;
    let server = TestServer::start().await;
    for file in ["kubeconfig", "pki/ca.key"] {
        let metadata = std::fs::metadata(server.directory.path().join(file)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let limits = ApiLimits { body: 10_000, ..ApiLimits::default() };
    let server = TestServer::start_with(ChangeWindow::default(), limits).await;
    let secrets: Api<Secret> = Api::default_namespaced(server.client().await);
    let secret = serde_json::from_value(json!({
        "metadata": {"name": "large"}, "stringData": {"key": "x".repeat(10_000)}
    }))
    .unwrap();
    let error = secrets.create(&PostParams::default(), &secret).await.unwrap_err();
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!((status.code, status.reason.as_str()), (413, "RequestEntityTooLarge"));
}

/// Long enough for a handshake on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_silent_client_is_disconnected() {
    let limits = ApiLimits { patience: Duration::from_millis(200), ..ApiLimits::default() };
    let server = TestServer::start_with(ChangeWindow::default(), limits).await;
    let mut silent = TcpStream::connect(server.server.address).await.unwrap();
    // The server closes the connection, so reading ends.
    let mut nothing = Vec::new();
    silent.read_to_end(&mut nothing).await.unwrap();
    assert!(nothing.is_empty());
}

#[tokio::test]
async fn watches_and_requests_have_separate_limits() {
    let limits = ApiLimits { requests: 2, watches: 6, ..ApiLimits::default() };
    let server = TestServer::start_with(ChangeWindow::default(), limits).await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(services.watch(&WatchParams::default(), "0").await.unwrap());
    }
    services.list(&ListParams::default()).await.unwrap();

    // kube-rs obeys Retry-After, and would retry forever.
    let https = server.config().await.rustls_https_connector().unwrap();
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(https);
    let path = "/api/v1/services?watch=true";
    let url = format!("https://{}{path}", server.server.address).parse().unwrap();
    let request = hyper::Request::get::<hyper::Uri>(url).body(Empty::<Bytes>::new()).unwrap();
    let refused = client.request(request).await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
}

#[tokio::test]
async fn half_open_connections_do_not_delay_a_client() {
    const NEVER: Duration = Duration::from_secs(100_000);
    let limits =
        ApiLimits { connections: 8, handshakes: 8, patience: NEVER, ..ApiLimits::default() };
    let server = TestServer::start_with(ChangeWindow::default(), limits).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(server.server.address).await.unwrap());
    }
    within_a_minute(server.client().await.apiserver_version()).await.unwrap();
    // The oldest made room.
    assert_eq!(silent[0].read(&mut [0]).await.unwrap_or_default(), 0);
}

#[tokio::test]
async fn a_client_that_sends_no_request_is_disconnected() {
    let limits = ApiLimits { patience: SHORT, ..ApiLimits::default() };
    let server = TestServer::start_with(ChangeWindow::default(), limits).await;
    for beginning in ["", "GET /version HTTP/1.1\r\nX-Slow: "] {
        let mut silent = connect(&server, "silent").await;
        silent.write_all(beginning.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        let _ = within_a_minute(silent.read_to_end(&mut received)).await;
        let received = String::from_utf8_lossy(&received);
        assert!(received.is_empty() || received.starts_with("HTTP/1.1 408"), "{received}");
    }
}

#[tokio::test]
async fn a_body_that_arrives_slowly_is_refused() {
    let limits = ApiLimits { patience: SHORT, ..ApiLimits::default() };
    let server = TestServer::start_with(ChangeWindow::default(), limits).await;
    let mut slow = connect(&server, "slow").await;
    let head = "POST /api/v1/namespaces HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut received = [0; 12];
    within_a_minute(slow.read_exact(&mut received)).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&received), "HTTP/1.1 408");
}

#[tokio::test]
async fn headers_and_bodies_have_size_limits_and_encodings_are_refused() {
    let server = TestServer::start().await;
    let large = "x".repeat(200_000);
    for (headers, expected) in [
        (format!("X-Large: {large}\r\n"), "431"),
        ("Content-Length: 100000000\r\n".to_owned(), "413"),
        ("Content-Encoding: gzip\r\nContent-Length: 2\r\n".to_owned(), "415"),
    ] {
        let mut client = connect(&server, "large").await;
        let request = format!("POST /api/v1/namespaces HTTP/1.1\r\nHost: a\r\n{headers}\r\n{{}}");
        // The server may close before it has read everything.
        let _ = client.write_all(request.as_bytes()).await;
        let mut received = [0; 12];
        within_a_minute(client.read_exact(&mut received)).await.unwrap();
        let received = String::from_utf8_lossy(&received).into_owned();
        assert_eq!(received, format!("HTTP/1.1 {expected}"));
    }
}

#[tokio::test]
async fn one_user_cannot_use_up_the_connections_and_requests_of_others() {
    let limits = ApiLimits { connections: 8, requests: 4, ..ApiLimits::default() };
    let server = TestServer::start_with(ChangeWindow::default(), limits).await;
    let mut greedy = Vec::new();
    for _ in 0..20 {
        // A request whose body never comes.
        let mut connection = connect(&server, "greedy").await;
        let head = "POST /api/v1/namespaces HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n";
        let _ = connection.write_all(head.as_bytes()).await;
        greedy.push(connection);
    }
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    within_a_minute(services.list(&ListParams::default())).await.unwrap();
}

/// A limit only for failures: what it waits for takes milliseconds.
async fn within_a_minute<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("within a minute")
}

#[tokio::test]
async fn a_client_that_never_reads_delays_no_other_and_is_disconnected() {
    const CHANGES: usize = 200;
    let limits = ApiLimits { stall: Duration::from_millis(500), ..ApiLimits::default() };
    let server = TestServer::start_with(ChangeWindow::default(), limits).await;
    // Each client has its own connection.
    let secrets: Api<Secret> = Api::default_namespaced(server.client().await);
    let others: Api<Secret> = Api::default_namespaced(server.client().await);
    let idle: Api<Secret> = Api::default_namespaced(server.client().await);
    let mut idle = idle.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let mut busy = others.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let secret = |number: usize| -> Secret {
        // More than the buffers between server and client can hold.
        serde_json::from_value(json!({
            "metadata": {"name": format!("s{number}")},
            "stringData": {"key": "x".repeat(100_000)},
        }))
        .unwrap()
    };
    for number in 0..CHANGES {
        secrets.create(&PostParams::default(), &secret(number)).await.unwrap();
        busy.next().await.unwrap().unwrap();
    }
    // The server closes the connection after the stall limit. What was sent until then can still be
    // read.
    let mut read = 0;
    while let Some(event) = idle.next().await {
        if event.is_err() {
            break;
        }
        read += 1;
        if read == 1 {
            // The stall is not observable from here, so only wait.
            tokio::time::sleep(limits.stall * 3).await;
        }
    }
    assert!(read < CHANGES, "it was never disconnected");
}

/// A client that asks to act as another one, to do less than it may, must not be obeyed as itself.
#[tokio::test]
async fn requests_in_the_name_of_another_user_are_refused() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::default_namespaced(server.client().await);
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let service = serde_json::from_value(service).unwrap();
    services.create(&PostParams::default(), &service).await.unwrap();
    let review = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for request in
        ["DELETE /api/v1/namespaces/default/services/web", review, "GET /version", "GET /livez"]
    {
        for header in [
            "Impersonate-User: nobody",
            "impersonate-user: nobody",
            "Impersonate-Group: viewers",
            "Impersonate-Uid: 1",
            "Impersonate-Extra-scopes: view",
            "Impersonate-Extra-: ",
            "Impersonate-Later: x",
        ] {
            let head =
                format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n");
            let mut client = connect(&server, "admin").await;
            client.write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).await.unwrap();
            let mut response = Vec::new();
            let _ = within_a_minute(client.read_to_end(&mut response)).await;
            let response = String::from_utf8_lossy(&response);
            assert!(response.starts_with("HTTP/1.1 403"), "{request}, {header}: {response}");
            assert!(response.contains("does not support impersonation"), "{response}");
        }
    }
    services.get("web").await.unwrap();
}
