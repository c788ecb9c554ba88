//! Counts requests to the API server, under the names that Kubernetes' own clients use.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::http::{Method, Request, Response};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tower::{Layer, Service};

/// Upper bounds in seconds, as in Kubernetes' clients.
const REQUEST_SECONDS_BUCKETS: [f64; 12] =
    [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

type ResponseCounters = Family<[(&'static str, String); 3], Counter>;
type RequestDurations = Family<[(&'static str, String); 2], Histogram, fn() -> Histogram>;

#[derive(Clone, Debug)]
pub struct ClientRequests {
    responses: ResponseCounters,
    durations: RequestDurations,
}

impl Default for ClientRequests {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(REQUEST_SECONDS_BUCKETS);
        Self {
            responses: ResponseCounters::default(),
            durations: RequestDurations::new_with_constructor(histogram),
        }
    }
}

impl ClientRequests {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "rest_client_requests",
            "Requests to the API server, by the status of the response; `<error>` if there was none",
            self.responses.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "Time until the API server began its response",
            self.durations.clone(),
        );
    }

    /// A layer for a client of the server at this address.
    pub fn counting(&self, host: &str) -> CountingLayer {
        CountingLayer { requests: self.clone(), host: Arc::from(host) }
    }

    fn count(&self, method: &Method, host: &str, status: Option<u16>, began: Instant) {
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        let (method, host) = (method.as_str().to_owned(), host.to_owned());
        self.durations
            .get_or_create(&[("verb", method.clone()), ("host", host.clone())])
            .observe(began.elapsed().as_secs_f64());
        self.responses.get_or_create(&[("code", code), ("method", method), ("host", host)]).inc();
    }
}

#[derive(Clone, Debug)]
pub struct CountingLayer {
    requests: ClientRequests,
    host: Arc<str>,
}

impl<S> Layer<S> for CountingLayer {
    type Service = CountedClient<S>;

    fn layer(&self, inner: S) -> CountedClient<S> {
        CountedClient { inner, counting: self.clone() }
    }
}

/// A client whose requests are counted.
#[derive(Clone, Debug)]
pub struct CountedClient<S> {
    inner: S,
    counting: CountingLayer,
}

impl<S, In, Out> Service<Request<In>> for CountedClient<S>
where
    S: Service<Request<In>, Response = Response<Out>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        let (began, method) = (Instant::now(), request.method().clone());
        let CountingLayer { requests, host } = self.counting.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await;
            let status = response.as_ref().ok().map(|response| response.status().as_u16());
            requests.count(&method, &host, status, began);
            response
        })
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn responses_and_failures_are_counted() {
        let requests = ClientRequests::default();
        let server = |request: Request<u16>| async move {
            match request.into_body() {
                0 => Err("refused"),
                status => Ok(Response::builder().status(status).body(()).unwrap()),
            }
        };
        let counting = requests.counting("192.0.2.1:6443");
        for status in [200, 200, 503, 0] {
            let client = counting.layer(tower::service_fn(server));
            let response = client.oneshot(Request::new(status)).await;
            assert_eq!(response.is_ok(), status != 0);
        }
        let mut registry = Registry::default();
        requests.register(&mut registry);
        let mut exported = String::new();
        text::encode(&mut exported, &registry).unwrap();
        for (code, count) in [("200", 2), ("503", 1), ("<error>", 1)] {
            let line = format!(
                "rest_client_requests_total{{code=\"{code}\",method=\"GET\",host=\"192.0.2.1:6443\"}} {count}\n"
            );
            assert!(exported.contains(&line), "{line} is not in\n{exported}");
        }
        let line =
            "rest_client_request_duration_seconds_count{verb=\"GET\",host=\"192.0.2.1:6443\"} 4\n";
        assert!(exported.contains(line), "{exported}");
    }
}
