//! Creates many objects at once, by requests of many connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Request;
use kube::Client;
use kube::client::Body;
use tests::programs::api_server::build_client;
use tests::worlds::topology::Host;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::objects::Creation;
use crate::interrupt::check_interrupt;

/// Requests at the same time, each on a connection of its own: etcd commits the writes of many together.
const REQUESTS_AT_ONCE: usize = 64;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Runs a function with a client, whose connections are in a host's network namespace.
pub fn with_client<T: Send>(
    host: &Host,
    kubeconfig: &std::path::Path,
    use_client: impl AsyncFnOnce(Client) -> Result<T> + Send,
) -> Result<T> {
    host.enter(|| {
        // One thread: a namespace is a property of threads.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { use_client(build_client(kubeconfig).await?).await })
    })
}

/// Creates objects; prints how far it is.
pub async fn create_objects(
    client: &Client,
    number: usize,
    object: impl Fn(usize) -> Creation + Send + Sync + 'static,
) -> Result<()> {
    let (object, next) = (Arc::new(object), Arc::new(AtomicUsize::new(0)));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..REQUESTS_AT_ONCE.min(number) {
        let (client, object, next) = (client.clone(), object.clone(), next.clone());
        tasks.spawn(async move {
            loop {
                let mine = next.fetch_add(1, Ordering::Relaxed);
                if mine >= number {
                    return anyhow::Ok(());
                }
                let (path, object) = object(mine);
                create_object(&client, &path, &object).await?;
            }
        });
    }
    let mut interval = tokio::time::interval(PROGRESS_INTERVAL);
    interval.tick().await;
    loop {
        tokio::select! {
            created = tasks.join_next() => match created {
                Some(created) => created??,
                None => return Ok(()),
            },
            _ = interval.tick() => {
                check_interrupt()?;
                let created = next.load(Ordering::Relaxed).min(number);
                let rate = created as f64 / began.elapsed().as_secs_f64();
                println!("  {created} of {number}, {rate:.0} a second");
            }
        }
    }
}

pub async fn create_object(client: &Client, path: &str, object: &serde_json::Value) -> Result<()> {
    let name = || format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(Body::from(serde_json::to_vec(object)?))?;
    send_request(client, request).await.with_context(name)
}

/// Changes an object by a merge patch.
pub async fn merge_patch(client: &Client, path: &str, patch: &serde_json::Value) -> Result<()> {
    let request = Request::patch(path).header("content-type", "application/merge-patch+json");
    let request = request.body(Body::from(serde_json::to_vec(patch)?))?;
    send_request(client, request).await.with_context(|| path.to_owned())
}

async fn send_request(client: &Client, request: Request<Body>) -> Result<()> {
    let response = client.send(request).await?;
    let status = response.status();
    let body = response.into_body().collect_bytes().await?;
    ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
    Ok(())
}
