//! Checks one slice: probes its endpoints, each on its own schedule, and writes what changes.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::config::{HealthCheck, ProbeStreak};
use super::io::probe_endpoint;
use crate::kinds::ApiKind;
use crate::operations::{Api, ApiRequest};
use crate::storage::StorageKey;

const MANAGER: &str = "millrace-health-checker";
/// Writes of a slice in one interval.
const MAX_WRITES_PER_INTERVAL: u32 = 8;
/// An interval is shortened or lengthened by up to this part of itself.
const INTERVAL_JITTER: f64 = 0.1;

pub(crate) struct CheckedSlice {
    api: Api,
    kind: &'static ApiKind,
    key: StorageKey,
    check: HealthCheck,
    /// By address. `None` before the first result.
    streaks: HashMap<SocketAddr, Option<ProbeStreak>>,
}

/// The result of a probe, and when it was due.
struct ProbeResult {
    address: SocketAddr,
    due: Instant,
    succeeds: bool,
}

impl CheckedSlice {
    pub fn new(api: Api, kind: &'static ApiKind, key: StorageKey, check: HealthCheck) -> Self {
        Self { api, kind, key, check, streaks: HashMap::new() }
    }

    /// Never ends. `changed` says that the slice may have other endpoints.
    pub async fn follow(mut self, slots: Arc<Semaphore>, changed: Arc<Notify>) {
        let pause = self.check.interval / MAX_WRITES_PER_INTERVAL;
        let mut probes = FuturesUnordered::new();
        let (mut last_write, mut next_write) = (None, None);
        loop {
            // The first pass has no notification to wait for.
            for address in self.new_addresses() {
                let due = Instant::now() + self.check.interval.mul_f64(random_fraction());
                probes.push(self.probe(address, due, &slots));
            }
            loop {
                let write = async {
                    match next_write {
                        Some(at) => sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = changed.notified() => break,
                    () = write => {
                        next_write = None;
                        last_write = Some(Instant::now());
                        self.write().await;
                    }
                    Some(probed) = probes.next() => {
                        // The address may have left the slice.
                        let Some(streak) = self.streaks.get_mut(&probed.address) else { continue };
                        let after = ProbeStreak::after(*streak, probed.succeeds);
                        *streak = Some(after);
                        if after.length <= self.check.rise.max(self.check.fall) {
                            let earliest = last_write.map(|last: Instant| last + pause);
                            next_write = next_write.or(earliest).or_else(|| Some(Instant::now()));
                        }
                        let next = self.next(probed.due);
                        probes.push(self.probe(probed.address, next, &slots));
                    }
                }
            }
        }
    }

    /// When an address is probed again: not sooner because the last probe was late.
    fn next(&self, due: Instant) -> Instant {
        let jittered = 1.0 - INTERVAL_JITTER + 2.0 * INTERVAL_JITTER * random_fraction();
        (due + self.check.interval.mul_f64(jittered)).max(Instant::now())
    }

    /// Addresses that are not probed yet. Forgets those that are gone.
    fn new_addresses(&mut self) -> Vec<SocketAddr> {
        let Some(stored) = self.api.storage().get(&self.key) else { return Vec::new() };
        let slice = stored.object();
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let all: HashSet<SocketAddr> =
            endpoints.flat_map(|endpoint| probes_of(&slice, endpoint)).collect();
        self.streaks.retain(|address, _| all.contains(address));
        let new: Vec<SocketAddr> =
            all.into_iter().filter(|address| !self.streaks.contains_key(address)).collect();
        self.streaks.extend(new.iter().map(|address| (*address, None)));
        new
    }

    fn probe(
        &self,
        address: SocketAddr,
        due: Instant,
        slots: &Arc<Semaphore>,
    ) -> impl Future<Output = ProbeResult> + use<> {
        let (protocol, limit) = (self.check.protocol.clone(), self.check.timeout);
        let slots = Arc::clone(slots);
        async move {
            sleep_until(due).await;
            // The semaphore is never closed.
            let _slot = slots.acquire().await;
            let result = match timeout(limit, probe_endpoint(&protocol, address)).await {
                Ok(result) => result,
                Err(elapsed) => Err(elapsed.into()),
            };
            if let Err(error) = &result {
                tracing::debug!(%address, error = format!("{error:#}"), "probe failed");
            }
            ProbeResult { address, due, succeeds: result.is_ok() }
        }
    }

    /// Writes changed conditions to the slice.
    async fn write(&self) {
        let Some(slice) = self.api.storage().get(&self.key) else { return };
        let slice = slice.object();
        let Some(endpoints) = self.checked_endpoints(&slice) else { return };
        let metadata = &slice["metadata"];
        let text = |field: &str| metadata[field].as_str().map(str::to_owned);
        // If the slice has changed meanwhile, this fails, and the next result tries again.
        let patch = json!({"metadata": {"resourceVersion": text("resourceVersion")},
            "endpoints": endpoints});
        let merge = "application/merge-patch+json";
        let request = ApiRequest::about(&slice, self.kind, MANAGER, merge, &patch);
        if let Err(failure) = self.api.patch(request).await
            && !matches!(failure.code, 404 | 409)
        {
            tracing::warn!(
                namespace = text("namespace"),
                name = text("name"),
                error = %failure,
                "endpoint slice not updated"
            );
        }
    }

    /// The endpoints with their conditions, if these have changed.
    fn checked_endpoints(&self, slice: &Value) -> Option<Value> {
        let mut endpoints = slice["endpoints"].clone();
        let mut is_changed = false;
        for endpoint in endpoints.as_array_mut().into_iter().flatten() {
            let was_ready = endpoint["conditions"]["ready"] != false;
            let probes = probes_of(slice, endpoint);
            let streaks: Option<Vec<ProbeStreak>> =
                probes.iter().map(|probe| self.streaks.get(probe).copied().flatten()).collect();
            // Without a port that can be probed, or before all are, the condition stays as written.
            let Some(streaks) = streaks.filter(|streaks| !streaks.is_empty()) else { continue };
            let ready = self.check.is_ready(was_ready, &streaks);
            if ready != was_ready {
                endpoint["conditions"]["ready"] = ready.into();
                is_changed = true;
            }
        }
        is_changed.then_some(endpoints)
    }
}

/// From 0 to 1. Only spreads probes, so without random numbers nothing breaks.
fn random_fraction() -> f64 {
    let number = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(number) / f64::from(u32::MAX)
}

/// Only the first address of an endpoint is used, and only its TCP ports.
fn probes_of(slice: &Value, endpoint: &Value) -> Vec<SocketAddr> {
    let Some(address) = endpoint["addresses"][0].as_str().and_then(|ip| ip.parse::<IpAddr>().ok())
    else {
        return Vec::new();
    };
    let ports = slice["ports"].as_array().into_iter().flatten();
    ports
        .filter(|port| matches!(port["protocol"].as_str(), None | Some("TCP")))
        .filter_map(|port| u16::try_from(port["port"].as_u64()?).ok())
        .map(|port| SocketAddr::new(address, port))
        .collect()
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::super::run_health_checker;
    use super::*;
    use crate::kinds::{AllocationRanges, KindRegistry};
    use crate::storage::{ChangeWindow, Storage};

    #[test]
    fn all_tcp_ports_of_the_first_address_are_tried() {
        let slice = json!({"ports": [{"port": 80, "protocol": "TCP"}, {"port": 81},
            {"port": 53, "protocol": "UDP"}, {"name": "none"}]});
        let endpoint = json!({"addresses": ["fd00::1", "fd00::2"]});
        let addresses: Vec<String> =
            probes_of(&slice, &endpoint).iter().map(SocketAddr::to_string).collect();
        assert_eq!(addresses, ["[fd00::1]:80", "[fd00::1]:81"]);
    }

    pub fn api(directory: &std::path::Path) -> Api {
        let storage = Storage::open(directory, ChangeWindow::default()).unwrap();
        let ranges = AllocationRanges {
            cluster_ips: vec!["10.96.0.0/16".parse().unwrap()],
            node_ports: 30000..=32767,
        };
        Api::new(storage, KindRegistry::default(), ranges).unwrap()
    }

    async fn create(api: &Api, api_version: &str, kind: &str, object: Value) {
        let kind = crate::kinds::find_kind(api_version, kind).unwrap();
        let mut request = ApiRequest::about(&object, kind, MANAGER, "application/json", &object);
        request.target.namespace = kind.namespaced.then(|| "default".to_owned());
        request.target.name = None;
        api.create(request).await.unwrap();
    }

    fn slice(name: &str, annotations: &BTreeMap<&str, &str>, address: SocketAddr) -> Value {
        json!({
            "metadata": {"name": name, "annotations": annotations},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address.ip()]}],
            "ports": [{"port": address.port()}],
        })
    }

    /// Loopback is not valid in a slice.
    fn own_address() -> Option<IpAddr> {
        nix::ifaddrs::getifaddrs().unwrap().find_map(|interface| {
            let address = interface.address?.as_sockaddr_in()?.ip();
            (!address.is_loopback() && !address.is_link_local()).then_some(address.into())
        })
    }

    async fn until_ready_is(api: &Api, name: &str, expected: bool) {
        let key = format!("endpointslices.discovery.k8s.io/default/{name}");
        let changed = async {
            loop {
                let slice = api.storage().get(&key).unwrap();
                if (slice.object()["endpoints"][0]["conditions"]["ready"] != false) == expected {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(120), changed).await.expect("ready changes");
    }

    #[tokio::test]
    async fn an_endpoint_that_never_responds_delays_no_other_and_comes_back() {
        let Some(address) = own_address() else {
            eprintln!("skipped: no address except loopback");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let api = api(directory.path());
        create(&api, "v1", "Namespace", json!({"metadata": {"name": "default"}})).await;
        let silent = TcpListener::bind((address, 0)).await.unwrap();
        let closed = TcpListener::bind((address, 0)).await.unwrap();
        let place = closed.local_addr().unwrap();
        let slow = BTreeMap::from([
            ("millrace.io/health-check", "http:/"),
            ("millrace.io/health-check-interval", "1h"),
            ("millrace.io/health-check-timeout", "1h"),
        ]);
        let fast = BTreeMap::from([
            ("millrace.io/health-check", "tcp"),
            ("millrace.io/health-check-interval", "100ms"),
        ]);
        for (name, annotations, address) in
            [("a", &slow, silent.local_addr().unwrap()), ("b", &fast, place)]
        {
            let object = slice(name, annotations, address);
            create(&api, "discovery.k8s.io/v1", "EndpointSlice", object).await;
        }
        drop(closed);
        let checker = tokio::spawn(run_health_checker(api.clone()));
        until_ready_is(&api, "b", false).await;
        let _again = TcpListener::bind(place).await.unwrap();
        until_ready_is(&api, "b", true).await;
        until_ready_is(&api, "a", true).await;
        checker.abort();
    }
}
