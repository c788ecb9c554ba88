//! Upstreams that are names in DNS for a while. Names are addresses here, so nothing is looked up.

use std::net::SocketAddr;

use lb_http::upstream::UpstreamProtocol;
use lb_http::{Upstream, UpstreamEndpoint, UpstreamName};
use lb_process::notices::NoticeLog;

use super::*;

fn upstream() -> UpstreamName {
    UpstreamName {
        namespace: "default".into(),
        service: "web".into(),
        port: "80".into(),
        protocol: UpstreamProtocol::Http1,
        tls: None,
    }
}

fn name(host: &str) -> UpstreamTarget {
    UpstreamTarget::Name { host: host.into(), port: 80 }
}

fn endpoints(address: &str) -> UpstreamTarget {
    let address = SocketAddr::new(address.parse().unwrap(), 80);
    let endpoints = vec![UpstreamEndpoint { address, is_local: false }];
    UpstreamTarget::Endpoints(Arc::new(Upstream { endpoints, draining: Vec::new() }))
}

struct World {
    controller: IngressController,
    resolved: mpsc::UnboundedReceiver<ResolvedUpstream>,
}

impl World {
    fn start() -> Self {
        let outlets = ControllerOutputs {
            notices: Arc::new(NoticeLog::default()),
            metrics: Arc::new(IngressMetrics::new()),
            status: None,
            published: None,
            annotations: IngressAnnotations::default(),
        };
        let (sender, resolved) = mpsc::unbounded_channel();
        let secrets = watch::Sender::new(BTreeSet::new());
        Self {
            controller: IngressController::new(
                IngressRuleSettings::default(),
                outlets,
                sender,
                secrets,
            ),
            resolved,
        }
    }

    fn set(&mut self, backends: UpstreamTarget) {
        let upstreams = [(upstream(), Some(backends))].into();
        self.controller.change_snapshot(&Delta { upstreams, ..Delta::default() });
    }

    async fn resolve(&mut self) {
        let resolved = self.resolved.recv().await.unwrap();
        self.controller.take_in_resolved(resolved);
    }

    fn addresses(&self) -> Vec<String> {
        let endpoints = &self.controller.snapshot.upstreams[&upstream()].endpoints;
        endpoints.iter().map(|endpoint| endpoint.address.ip().to_string()).collect()
    }
}

#[tokio::test]
async fn late_addresses_do_not_replace_endpoints_or_those_of_another_name() {
    let mut world = World::start();
    for later in [endpoints("10.0.0.1"), name("192.0.2.2")] {
        world.set(name("192.0.2.1"));
        // Resolved, but not taken in yet.
        let late = world.resolved.recv().await.unwrap();
        world.set(later);
        let before = world.addresses();
        world.controller.take_in_resolved(late);
        assert_eq!(world.addresses(), before);
    }
    world.resolve().await;
    assert_eq!(world.addresses(), ["192.0.2.2"]);
}

#[tokio::test]
async fn a_name_that_returns_at_once_is_resolved_again() {
    let mut world = World::start();
    world.set(name("192.0.2.1"));
    world.resolve().await;
    assert_eq!(world.addresses(), ["192.0.2.1"]);
    // Both before the resolver looks at them.
    world.set(endpoints("10.0.0.1"));
    world.set(name("192.0.2.1"));
    assert!(world.addresses().is_empty());
    world.resolve().await;
    assert_eq!(world.addresses(), ["192.0.2.1"]);
}
