//! The HTTP client that all requests go through. It is replaced, with its connections, when the
//! files of the configuration change, and when another API server is needed.
//!
//! A connection keeps the client certificate that it began with, and idle ones are used again, so
//! only a new client uses new credentials for certain. Responses that are being read continue.

use std::pin::Pin;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{Body, ConfigExt};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

use super::access::{Access, Opened};
use super::credentials::Credentials;
use super::files::{Files, Fingerprint};
use super::servers::{Connector, Generation, Servers};

/// How often to look for new files after a request has failed.
const POLL: Duration = Duration::from_secs(1);

type Http = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

#[derive(Clone)]
pub struct Transport(Arc<Inner>);

struct Inner {
    access: Access,
    servers: Arc<Servers>,
    files: StdMutex<Files>,
    current: Mutex<Current>,
}

struct Current {
    config: Config,
    http: Http,
    /// What `http` was made for.
    used: Used,
    /// Files that can't be used: reported once.
    refused: Option<Fingerprint>,
}

/// The files and the server that a request used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    files: Fingerprint,
    server: Generation,
}

impl Transport {
    pub fn new(
        access: Access,
        opened: Opened,
        fingerprint: Fingerprint,
        servers: Arc<Servers>,
    ) -> Result<Self> {
        let used = Used { files: fingerprint, server: servers.generation() };
        let http = http(&opened.config, &servers)?;
        let current = Current { config: opened.config, http, used, refused: None };
        Ok(Self(Arc::new(Inner {
            access,
            servers,
            files: opened.files.into(),
            current: current.into(),
        })))
    }

    pub fn servers(&self) -> Arc<Servers> {
        Arc::clone(&self.0.servers)
    }

    /// What a request that begins now uses.
    pub fn used(&self) -> Used {
        let files = self.0.files.lock().unwrap_or_else(PoisonError::into_inner).fingerprint();
        Used { files, server: self.0.servers.generation() }
    }

    /// Waits until the files differ from those that were used.
    pub async fn replaced(&self, used: Used) {
        while self.used().files == used.files {
            sleep(POLL).await;
        }
    }

    /// Avoids the server that was used: it accepts connections, but does not serve requests.
    pub fn avoid(&self, used: Used) {
        self.0.servers.avoid(used.server);
    }

    async fn current(&self) -> Http {
        let mut current = self.0.current.lock().await;
        let used = self.used();
        if used.files != current.used.files && current.refused != Some(used.files) {
            match self.read_again(used).await {
                Ok(new) => *current = new,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "changed files of the cluster's configuration ignored");
                    current.refused = Some(used.files);
                }
            }
        }
        // Files that were read again may have changed the servers.
        let server = self.0.servers.generation();
        if server != current.used.server
            && let Ok(http) = http(&current.config, &self.0.servers)
        {
            current.http = http;
            current.used.server = server;
        }
        current.http.clone()
    }

    async fn read_again(&self, used: Used) -> Result<Current> {
        let Inner { access, servers, files, .. } = &*self.0;
        let opened = access.read().await?;
        let http = http(&opened.config, servers)?;
        servers.configure(&opened.urls, &opened.config)?;
        let origin = opened.origin;
        tracing::debug!(origin, "configuration of the cluster read again");
        *files.lock().unwrap_or_else(PoisonError::into_inner) = opened.files;
        Ok(Current { config: opened.config, http, used, refused: None })
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let transport = self.clone();
        Box::pin(async move { transport.current().await.oneshot(request).await })
    }
}

/// Builds a client without retries: callers retry, because they know how long to wait.
fn http(config: &Config, servers: &Arc<Servers>) -> Result<Http> {
    // The file may be just being written: without a certificate no server could prove its name.
    let has_ca = config.root_cert.as_ref().is_none_or(|certificates| !certificates.is_empty());
    ensure!(has_ca, "the file of the certificate authority contains no certificate");
    let connector = Connector::new(config, Arc::clone(servers))?;
    let credentials = Credentials::of(&config.auth_info)?;
    let in_file = credentials.are_in_file();
    let other_credentials = if in_file { None } else { config.auth_layer()? };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(other_credentials)
        .map_request(move |mut request: Request<Body>| {
            credentials.authorize(&mut request);
            request
        })
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(BoxCloneSyncService::new(service))
}
