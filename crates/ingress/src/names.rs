//! Upstreams that are names in DNS: their addresses are looked up again and again.
//!
//! A name that can't be resolved keeps its last addresses. Those that [`target::check_destination`] forbids are left out: with them,
//! every user who may create a Service could reach what only this machine can reach.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use lb_http::{Upstream, UpstreamEndpoint, UpstreamName, target};
use tokio::net::lookup_host;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Look-ups at the same time.
const MAX_CONCURRENT_LOOKUPS: usize = 16;

/// Host name and port. Each change of an upstream makes another one, even if it is equal: the addresses are gone that
/// were resolved before.
type NameTarget = Arc<(Arc<str>, u16)>;

/// The upstreams to resolve.
pub(crate) struct NameResolver(watch::Sender<BTreeMap<UpstreamName, NameTarget>>);

/// The addresses of an upstream.
pub(crate) struct ResolvedUpstream {
    pub upstream: UpstreamName,
    pub addresses: Arc<Upstream>,
    target: NameTarget,
}

impl NameResolver {
    /// Sends addresses that have changed to `results`.
    pub fn start(results: mpsc::UnboundedSender<ResolvedUpstream>) -> Self {
        let (wanted, names) = watch::channel(BTreeMap::new());
        tokio::spawn(resolve_periodically(names, results));
        Self(wanted)
    }

    pub fn set(&self, upstream: &UpstreamName, name: Option<(Arc<str>, u16)>) {
        self.0.send_if_modified(|wanted| match name {
            Some(name) => {
                wanted.insert(upstream.clone(), Arc::new(name));
                true
            }
            None => wanted.remove(upstream).is_some(),
        });
    }

    /// Whether the upstream has not changed since it was resolved.
    pub fn is_current(&self, resolved: &ResolvedUpstream) -> bool {
        let wanted = self.0.borrow();
        wanted.get(&resolved.upstream).is_some_and(|target| Arc::ptr_eq(target, &resolved.target))
    }
}

async fn resolve_periodically(
    mut wanted: watch::Receiver<BTreeMap<UpstreamName, NameTarget>>,
    results: mpsc::UnboundedSender<ResolvedUpstream>,
) {
    let mut known: BTreeMap<UpstreamName, (NameTarget, Arc<Upstream>)> = BTreeMap::new();
    let mut all = false;
    loop {
        let names = wanted.borrow_and_update().clone();
        known.retain(|upstream, (target, _)| {
            names.get(upstream).is_some_and(|wanted| Arc::ptr_eq(wanted, target))
        });
        let due: Vec<(UpstreamName, NameTarget)> = names
            .into_iter()
            .filter(|(upstream, _)| all || !known.contains_key(upstream))
            .collect();
        let resolved = stream::iter(due)
            .map(|(upstream, target)| async {
                let addresses = resolve_name(&target).await;
                (upstream, target, addresses)
            })
            .buffer_unordered(MAX_CONCURRENT_LOOKUPS);
        let resolved: Vec<_> = resolved.collect().await;
        for (upstream, target, addresses) in resolved {
            let Some(addresses) = addresses else { continue };
            let addresses = Arc::new(addresses);
            let before = known.insert(upstream.clone(), (target.clone(), Arc::clone(&addresses)));
            if before.is_none_or(|(_, before)| before != addresses)
                && results.send(ResolvedUpstream { upstream, addresses, target }).is_err()
            {
                return;
            }
        }
        all = tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                false
            }
            () = sleep(RESOLVE_INTERVAL) => true,
        };
    }
}

/// `None`: the name can't be resolved now.
async fn resolve_name(target: &NameTarget) -> Option<Upstream> {
    let (host, port) = &**target;
    let found = match timeout(RESOLVE_TIMEOUT, lookup_host((&**host, *port))).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            tracing::warn!(%host, %error, "name of an upstream not resolved; retrying");
            return None;
        }
        Err(_) => {
            tracing::warn!(%host, "name of an upstream not resolved in time; retrying");
            return None;
        }
    };
    let is_allowed = |address: &std::net::SocketAddr| match target::check_destination(address.ip())
    {
        Ok(()) => true,
        Err(reason) => {
            tracing::warn!(%host, address = %address.ip(), %reason, "address of an upstream refused");
            false
        }
    };
    let mut endpoints: Vec<UpstreamEndpoint> = found
        .filter(is_allowed)
        .map(|address| UpstreamEndpoint { address, is_local: false })
        .collect();
    endpoints.sort();
    endpoints.dedup();
    Some(Upstream { endpoints, draining: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_that_tenants_must_not_reach_are_left_out() {
        // Addresses of this machine, of Azure's WireServer, and of AWS's metadata server.
        for forbidden in ["localhost", "168.63.129.16", "fd00:ec2::254", "::ffff:127.0.0.1"] {
            let none = resolve_name(&Arc::new((Arc::from(forbidden), 80))).await.unwrap();
            assert!(none.endpoints.is_empty(), "{forbidden}");
        }
        let found = resolve_name(&Arc::new((Arc::from("192.0.2.1"), 80))).await.unwrap();
        assert_eq!(found.endpoints[0].address, ([192, 0, 2, 1], 80).into());
    }

    #[tokio::test]
    async fn a_name_is_resolved_once_it_is_wanted() {
        let (results, mut resolved) = mpsc::unbounded_channel();
        let names = NameResolver::start(results);
        let upstream = UpstreamName {
            namespace: "a".into(),
            service: "b".into(),
            port: "80".into(),
            protocol: lb_http::upstream::UpstreamProtocol::Http1,
            tls: None,
        };
        names.set(&upstream, Some((Arc::from("192.0.2.1"), 80)));
        let resolved = resolved.recv().await.unwrap();
        assert_eq!(resolved.upstream, upstream);
        assert_eq!(resolved.addresses.endpoints[0].address, ([192, 0, 2, 1], 80).into());
    }
}
