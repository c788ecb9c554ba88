//! When the threads that announce addresses hear of a change.

use lb_speakers::bgp::SpeakerCommand;
use tokio::sync::watch;

use super::*;
use crate::announcer::{Beat, Wanted};

struct World {
    case: Case,
    wanted: watch::Receiver<Option<Arc<Wanted>>>,
    commands: mpsc::UnboundedReceiver<SpeakerCommand>,
}

impl World {
    fn new() -> Self {
        let (announcer, wanted) = watch::channel(None);
        let (speaker, commands) = mpsc::unbounded_channel();
        let case = Case::with(|outlets| {
            outlets.with_announcer(announcer, Beat::default()).with_speaker(speaker)
        });
        Self { case, wanted, commands }
    }

    /// All objects are known, as far as `extent` says.
    fn synced(&mut self, extent: Extent) {
        self.case.handle(Event::Synced(extent));
    }

    fn apply(&mut self, object: Value) {
        self.case.handle(applied(object));
    }

    /// A Service with an address of a pool, and an endpoint.
    fn serve(&mut self) {
        self.apply(pool(0));
        let mut service = service("web", "10.96.0.1");
        service["spec"]["type"] = "LoadBalancer".into();
        service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        self.apply(service);
        self.case.endpoints("web", &["10.244.0.1"]);
    }

    /// What was sent since the last call.
    fn sent(&mut self) -> Vec<&'static str> {
        let mut sent = Vec::new();
        if self.wanted.has_changed().unwrap() {
            self.wanted.mark_unchanged();
            sent.push("wanted");
        }
        while let Ok(command) = self.commands.try_recv() {
            sent.push(match command {
                SpeakerCommand::Peers(_) => "peers",
                SpeakerCommand::Routes(_) => "routes",
                SpeakerCommand::Synced => "synced",
                SpeakerCommand::Drain(_) => "drain",
                SpeakerCommand::ShutDown(_) => "shut down",
            });
        }
        sent
    }
}

fn pool(used: u32) -> Value {
    json!({
        "apiVersion": "millrace.io/v1alpha1", "kind": "AddressPool", "metadata": {"name": "a"},
        "spec": {"addresses": ["192.0.2.0/24"]}, "status": {"usedIPv4": used}
    })
}

/// A Node as its kubelet reports it at some time.
fn node(name: &str, rack: &str, cordoned: bool, heartbeat: u32) -> Value {
    let time = format!("2026-01-01T00:{heartbeat:02}:00Z");
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"rack": rack}},
        "spec": {"unschedulable": cordoned},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time}],
            "addresses": [{"type": "InternalIP", "address": "10.7.0.1"}]
        }
    })
}

#[test]
fn only_what_announcements_depend_on_is_sent_again() {
    let mut world = World::new();
    world.synced(Extent::All);
    world.apply(node("node-a", "1", false, 0));
    world.serve();
    assert!(world.sent().contains(&"wanted"));

    world.apply(node("node-a", "1", false, 1));
    assert_eq!(world.sent(), [""; 0], "a heartbeat of this node");
    for heartbeat in 0..2 {
        world.apply(node("node-b", "2", heartbeat == 1, heartbeat));
        assert_eq!(world.sent(), [""; 0], "another node");
    }
    world.case.handle(Event::Deleted(ObjectRef::new(Kind::Node, None, Some("node-b"))));
    assert_eq!(world.sent(), [""; 0], "another node is deleted");
    world.apply(pool(1));
    assert_eq!(world.sent(), [""; 0], "the status of a pool");

    world.apply(node("node-a", "2", false, 2));
    assert_eq!(world.sent(), ["wanted", "routes"], "a label");
    world.apply(node("node-a", "2", true, 3));
    assert_eq!(world.sent(), ["wanted", "routes", "drain"], "a cordon");
    world.case.handle(Event::Deleted(ObjectRef::new(Kind::Node, None, Some("node-a"))));
    assert_eq!(world.sent(), ["wanted", "routes", "drain"], "this node is deleted");
    world.case.handle(Event::Deleted(ObjectRef::new(Kind::AddressPool, None, Some("a"))));
    assert_eq!(world.sent(), ["wanted", "routes"], "a pool");
}

#[test]
fn nothing_is_announced_or_withdrawn_until_pools_and_peers_are_known() {
    let mut world = World::new();
    world.synced(Extent::Services);
    world.serve();
    assert_eq!(world.case.memory.led_to()["192.0.2.1"], ["10.244.0.1"], "the Service is served");
    assert_eq!(world.sent(), [""; 0]);
    world.synced(Extent::Pools);
    assert_eq!(world.sent(), ["wanted"]);
    world.apply(node("node-a", "1", false, 0));
    assert_eq!(world.sent(), ["wanted"], "other pools may select other nodes");
    world.synced(Extent::All);
    assert_eq!(world.sent(), ["routes", "synced"]);
}

/// A router with graceful restart removes what the first routes lack.
#[test]
fn the_first_routes_have_the_cluster_ips_that_a_peer_names() {
    let peer = |advertisements: Value| {
        json!({
            "apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer", "metadata": {"name": "tor"},
            "spec": {"address": "192.0.2.254", "localASN": 64512, "serviceAdvertisements": advertisements}
        })
    };
    let mut world = World::new();
    let mut web = service("web", "10.96.0.1");
    web["metadata"]["labels"] = json!({"app": "web", "millrace.io/advertise": "edge"});
    world.apply(web);
    world.case.endpoints("web", &["10.244.0.1"]);
    let selector = json!({"matchLabels": {"millrace.io/advertise": "edge"}});
    world.apply(peer(json!([{"clusterIPs": true, "serviceSelector": selector}])));
    world.synced(Extent::Pools);
    world.synced(Extent::All);
    // The number of addresses in the routes before this node has sent all.
    let mut advertised = || {
        let mut counts = Vec::new();
        while let Ok(command) = world.commands.try_recv() {
            match command {
                SpeakerCommand::Routes(routes) => {
                    counts.push(routes.iter().map(|(_, all)| all.len()).sum::<usize>());
                }
                SpeakerCommand::Synced => break,
                _ => {}
            }
        }
        counts
    };
    assert_eq!(advertised(), [1]);
    world.apply(peer(json!([])));
    let Ok(SpeakerCommand::Routes(routes)) = world.commands.try_recv() else { panic!() };
    assert_eq!(routes.iter().map(|(_, all)| all.len()).sum::<usize>(), 0);
}
