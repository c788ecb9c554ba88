//! Requests as they are, and the parts of responses that clients use.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

/// Time limit of a request. Longer than all that the requests ask a server to wait for.
const RESPONSE_LIMIT: Duration = Duration::from_secs(30);

/// A request to both servers. `{name}` in path and body is replaced by what an earlier step has captured.
#[derive(Clone, Debug, Default)]
pub struct ApiRequest {
    pub method: &'static str,
    pub path: String,
    pub accept: &'static str,
    pub content_type: &'static str,
    pub body: String,
}

#[derive(Debug)]
pub struct ApiResponse {
    /// 0 if the server has closed the connection instead.
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl ApiResponse {
    /// The body as JSON: of a watch the list of its events, of other text that text.
    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        if let Ok(value) = serde_json::from_str(&text) {
            return value;
        }
        let lines = text.lines().filter(|line| !line.is_empty());
        match lines.map(serde_json::from_str).collect::<Result<Vec<Value>, _>>() {
            Ok(events) if !events.is_empty() => Value::Array(events),
            _ => Value::String(text.into_owned()),
        }
    }

    /// The values of a header.
    pub fn header(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    }
}

/// A client that repeats nothing and follows nothing, as the clients of libraries do.
pub struct ApiClient {
    send: Box<dyn Fn(Request<Full<Bytes>>) -> legacy::ResponseFuture>,
    server: String,
    authorization: Option<String>,
}

impl ApiClient {
    /// A client with the certificate of a kubeconfig, or with a token.
    pub async fn new(kubeconfig: &Path, token: Option<&str>) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let https = config.rustls_https_connector()?;
        let client = legacy::Client::builder(TokioExecutor::new()).build(https);
        Ok(Self {
            send: Box::new(move |request| client.request(request)),
            server: config.cluster_url.to_string().trim_end_matches('/').to_owned(),
            authorization: token.map(|token| format!("Bearer {token}")),
        })
    }

    pub async fn send(&self, request: &ApiRequest) -> Result<ApiResponse> {
        let what = || format!("{} {}", request.method, request.path);
        let mut built =
            Request::builder().method(request.method).uri(self.server.clone() + &request.path);
        built = built.header(header::USER_AGENT, "tester/1");
        for (name, value) in
            [(header::ACCEPT, request.accept), (header::CONTENT_TYPE, request.content_type)]
        {
            if !value.is_empty() {
                built = built.header(name, value);
            }
        }
        if let Some(authorization) = &self.authorization {
            built = built.header(header::AUTHORIZATION, authorization);
        }
        let built = built.body(Full::from(request.body.clone().into_bytes()))?;
        let exchange = async {
            let (parts, body) = match (self.send)(built).await {
                Ok(response) => response.into_parts(),
                Err(error) if error.is_connect() => return Err(error.into()),
                // A server that gives up on a request. One on a connection that is closed already was sent again.
                Err(error) => {
                    let body = format!("no response: {error:#}").into();
                    return Ok(ApiResponse { status: 0, headers: HeaderMap::new(), body });
                }
            };
            let body = body.collect().await?.to_bytes();
            anyhow::Ok(ApiResponse { status: parts.status.as_u16(), headers: parts.headers, body })
        };
        tokio::time::timeout(RESPONSE_LIMIT, exchange)
            .await
            .with_context(|| {
                format!("{}: no end of the response within {RESPONSE_LIMIT:?}", what())
            })?
            .with_context(what)
    }
}
