//! Requests to the collector, over one connection at a time.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::collector::CollectorSettings;

/// From the connection to the end of the response.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
const MOST_RESPONSE_OCTETS: usize = 64 << 10;
/// A collector may ask for no longer pause.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExportOutcome {
    Accepted {
        /// Spans that the collector does not want.
        rejected: usize,
    },
    /// The same request would be refused again.
    Refused(String),
    Unavailable {
        why: String,
        pause: Option<Duration>,
    },
}

pub(crate) struct CollectorConnection {
    settings: CollectorSettings,
    request_limit: Duration,
    open: Option<OpenConnection>,
}

struct OpenConnection {
    sender: SendRequest<Full<Bytes>>,
    /// Reads and writes. Aborted when the connection is dropped: with a collector that does not read, the task would wait
    /// for its last octets, and keep them.
    _task: JoinSet<()>,
}

impl CollectorConnection {
    pub fn new(settings: CollectorSettings) -> Self {
        Self { settings, request_limit: REQUEST_LIMIT, open: None }
    }

    #[cfg(test)]
    pub(crate) fn with_limit(self, request_limit: Duration) -> Self {
        Self { request_limit, ..self }
    }

    pub async fn export(&mut self, message: Bytes) -> ExportOutcome {
        let limit = self.request_limit;
        // Whatever happens to the request, the next one needs a new connection unless this one is put back.
        let open = self.open.take();
        let sent = timeout(limit, self.send_request(open, message)).await;
        let unavailable = |why| ExportOutcome::Unavailable { why, pause: None };
        match sent {
            Ok(Ok((outcome, open))) => {
                self.open = open;
                outcome
            }
            Ok(Err(why)) => unavailable(why),
            Err(_) => unavailable(format!("no response within {limit:?}")),
        }
    }

    /// Returns the connection if it can be used again.
    async fn send_request(
        &self,
        open: Option<OpenConnection>,
        message: Bytes,
    ) -> Result<(ExportOutcome, Option<OpenConnection>), String> {
        let request = self.request(message)?;
        let mut open = match open.filter(|open| !open.sender.is_closed()) {
            Some(open) => open,
            None => self.connect().await?,
        };
        let failed = |error: hyper::Error| format!("no response: {error}");
        open.sender.ready().await.map_err(failed)?;
        let response = open.sender.send_request(request).await;
        let (outcome, is_complete) = read_response(response.map_err(failed)?).await;
        Ok((outcome, is_complete.then_some(open)))
    }

    /// Headers are read each time: a token in them expires.
    fn request(&self, message: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let url = &self.settings.url;
        let mut request = Request::new(Full::new(message));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url.path.parse().map_err(|_| "the path of the URL is not valid")?;
        let own = request.headers_mut();
        own.insert(USER_AGENT, HeaderValue::from_static("millrace"));
        own.extend(self.settings.read_headers()?);
        own.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let host = HeaderValue::from_str(&url.authority);
        own.insert(HOST, host.map_err(|_| "the host of the URL is not valid")?);
        Ok(request)
    }

    async fn connect(&self) -> Result<OpenConnection, String> {
        let url = &self.settings.url;
        let failed = |error: io::Error| format!("cannot connect: {error}");
        let tcp = TcpStream::connect((&*url.host, url.port)).await.map_err(failed)?;
        let open = if url.is_tls {
            let connector = TlsConnector::from(self.settings.read_tls()?);
            let name = ServerName::try_from(url.host.clone());
            let name = name.map_err(|error| format!("the host of the URL: {error}"))?;
            open_http(connector.connect(name, tcp).await.map_err(failed)?).await
        } else {
            open_http(tcp).await
        };
        open.map_err(|error| format!("cannot connect: {error}"))
    }
}

async fn open_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> hyper::Result<OpenConnection> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MOST_RESPONSE_OCTETS)
        .handshake(TokioIo::new(stream))
        .await?;
    let mut task = JoinSet::new();
    // Its errors are those of requests, too.
    task.spawn(async move { drop(connection.await) });
    Ok(OpenConnection { sender, _task: task })
}

/// What a response says, and whether it was complete.
async fn read_response(response: Response<Incoming>) -> (ExportOutcome, bool) {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, MOST_RESPONSE_OCTETS).collect().await;
    let (document, is_complete) = match body {
        Ok(body) => (body.to_bytes(), true),
        Err(_) => (Bytes::new(), false),
    };
    let outcome = match parts.status {
        status if status.is_success() => {
            // A collector that says no more than the status has taken all.
            let response = ExportTraceServiceResponse::decode(document).unwrap_or_default();
            let rejected = response.partial_success.map_or(0, |part| part.rejected_spans);
            ExportOutcome::Accepted { rejected: usize::try_from(rejected).unwrap_or(0) }
        }
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            let seconds = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let seconds = seconds.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
            ExportOutcome::Unavailable {
                why: format!("status {}", parts.status.as_u16()),
                pause: seconds.map(|pause| pause.min(LONGEST_RETRY_AFTER)),
            }
        }
        status => ExportOutcome::Refused(format!("status {}", status.as_u16())),
    };
    (outcome, is_complete)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use super::*;

    /// A TLS connection whose other end does not read: even its end cannot be written.
    struct StuckStream(#[expect(dead_code, reason = "counts streams")] Arc<()>);

    impl AsyncRead for StuckStream {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for StuckStream {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn nothing_is_left_of_a_connection_that_hangs() {
        let streams = Arc::new(());
        let mut open = open_http(StuckStream(streams.clone())).await.unwrap();
        let request = Request::new(Full::new(Bytes::from_static(b"spans")));
        let sent = open.sender.send_request(request);
        assert!(timeout(Duration::from_millis(5), sent).await.is_err());
        drop(open);
        while Arc::strong_count(&streams) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
