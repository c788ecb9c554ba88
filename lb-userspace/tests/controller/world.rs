//! Objects, and waiting for what becomes of them.

use std::fmt::Debug;
use std::net::Ipv4Addr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use lb_rules::kinds::AddressPool;
use lb_rules::kinds::service::CONDITION;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub use super::ports::free_port;

/// A long limit costs time only in failures.
pub const SOON: Duration = Duration::from_secs(120);
pub const PAUSE: Duration = Duration::from_millis(10);

/// The status and the body of a page.
pub async fn get(port: u16, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(response.clone()))?;
    let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// Waits until a page has this status. Its server may not listen yet.
pub async fn until_status(port: u16, path: &str, status: u16) {
    let mut last = None;
    let waiting = async {
        while !matches!(&last, Some(Ok((found, _))) if *found == status) {
            tokio::time::sleep(PAUSE).await;
            last = Some(get(port, path).await);
        }
    };
    if tokio::time::timeout(SOON, waiting).await.is_err() {
        panic!("{path} has {last:?}");
    }
}

pub fn pool(name: &str, ranges: &[&str]) -> AddressPool {
    serde_json::from_value(json!({
        "apiVersion": "millrace.io/v1alpha1", "kind": "AddressPool",
        "metadata": {"name": name}, "spec": {"addresses": ranges}
    }))
    .unwrap()
}

pub fn service(name: &str, more: Value) -> Service {
    let mut spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

pub async fn create<T>(api: &Api<T>, object: T)
where
    T: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    api.create(&PostParams::default(), &object).await.unwrap();
}

pub async fn patch<T>(api: &Api<T>, name: &str, patch: Value)
where
    T: Resource + Clone + Debug + DeserializeOwned,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

pub fn addresses(service: &Service) -> Vec<String> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.into_iter().flat_map(|balancer| balancer.ingress.iter().flatten());
    points.filter_map(|point| point.ip.clone()).collect()
}

pub fn condition(service: &Service) -> Option<&Condition> {
    let conditions = service.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == CONDITION)
}

pub fn reason(service: &Service) -> &str {
    condition(service).map_or("", |condition| &condition.reason)
}

/// Waits until a Service is like that.
pub async fn until(services: &Api<Service>, name: &str, such: impl Fn(&Service) -> bool) {
    let mut last = None;
    let waiting = async {
        loop {
            match services.get(name).await {
                Ok(service) if such(&service) => return,
                other => last = Some(other),
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    if tokio::time::timeout(SOON, waiting).await.is_err() {
        panic!("{name} is {last:?}");
    }
}
