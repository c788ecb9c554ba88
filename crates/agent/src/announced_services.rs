//! Has what this node announces written as objects of MetalLB's kinds: what `millrace announcements` and `millrace bgp`
//! show, by Service.
//!
//! # Invariants
//! - Nothing is written before all is known: objects of an earlier agent stay meanwhile.
//! - The threads that announce never wait for it: it looks at what they have reported, once a second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lb_announce::LinkView;
use lb_rules::model::ServiceName;
use lb_source::cluster::{
    AnnouncedServices, AnnouncedThrough, NodeTaints, StatusKind, StatusWriter,
};
use lb_status::Condition;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Changes within this time are written as one.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a shutdown waits for the deletion of this node's objects.
const WITHDRAWAL_LIMIT: Duration = Duration::from_secs(2);
/// Pairs of a dead node and a Service that was taken over.
const MOST_TAKEN_OVER: usize = 10_000;

type Services = BTreeMap<ServiceName, AnnouncedThrough>;

/// The tasks that write what this node announces, until it is dropped.
pub(crate) struct AnnouncedServicesReport {
    writers: Vec<StatusWriter>,
    tasks: JoinSet<()>,
}

impl AnnouncedServicesReport {
    pub fn start(
        writers: Vec<StatusWriter>,
        condition: &Arc<Condition>,
        node: &watch::Receiver<NodeTaints>,
    ) -> Self {
        let mut tasks = JoinSet::new();
        for writer in writers.clone() {
            let (publish, announced) = watch::channel(None);
            let condition = Arc::clone(condition);
            match writer.kind() {
                StatusKind::Layer2 => tasks.spawn(follow_links(condition, publish)),
                StatusKind::Bgp => tasks.spawn(follow_bgp(condition, publish)),
            };
            tasks.spawn(writer.write_whenever_changed(announced, node.clone()));
        }
        Self { writers, tasks }
    }

    /// This node no longer announces anything: deletes its objects.
    pub async fn withdraw(mut self) {
        self.tasks.shutdown().await;
        for writer in self.writers {
            if let Ok(Err(error)) = timeout(WITHDRAWAL_LIMIT, writer.delete_all()).await {
                let kind = writer.kind().name();
                tracing::warn!(error, kind, "objects of this node's announcements not deleted");
            }
        }
    }
}

async fn follow_links(
    condition: Arc<Condition>,
    publish: watch::Sender<Option<AnnouncedServices>>,
) {
    let (mut seen, mut announced) = (None, AnnouncedServices::default());
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(links) = condition.announcements() else { continue };
        if seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &links)) {
            continue;
        }
        if let Some(services) = list_announced_services(&links) {
            let taken_over = &announced.taken_over;
            let taken_over = list_taken_over(&links, &announced.services, &services, taken_over);
            announced = AnnouncedServices { services, taken_over };
            publish_change(&publish, &announced);
        }
        seen = Some(links);
    }
}

async fn follow_bgp(condition: Arc<Condition>, publish: watch::Sender<Option<AnnouncedServices>>) {
    let mut seen = None;
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(services) = condition.bgp().services.clone() else { continue };
        if seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &services)) {
            continue;
        }
        let announced =
            AnnouncedServices { services: Services::clone(&services), ..Default::default() };
        publish_change(&publish, &announced);
        seen = Some(services);
    }
}

fn publish_change(
    publish: &watch::Sender<Option<AnnouncedServices>>,
    announced: &AnnouncedServices,
) {
    publish.send_if_modified(|published| {
        let is_new = published.as_ref() != Some(announced);
        if is_new {
            *published = Some(announced.clone());
        }
        is_new
    });
}

/// The Services that this node announces on links, with the names of the interfaces. `None`: of an address that an
/// earlier agent announced, the Services are not known yet.
fn list_announced_services(links: &[LinkView]) -> Option<Services> {
    let mut services: BTreeMap<ServiceName, BTreeSet<String>> = BTreeMap::new();
    for link in links {
        for address in link.addresses.iter().filter(|address| address.is_here()) {
            if address.services.is_empty() {
                return None;
            }
            for service in &address.services {
                let Some((namespace, name)) = service.split_once('/') else { continue };
                let interfaces = services.entry(ServiceName::new(namespace, name)).or_default();
                if !interfaces.contains(&link.interface) {
                    interfaces.insert(link.interface.clone());
                }
            }
        }
    }
    let mut shared: BTreeSet<AnnouncedThrough> = BTreeSet::new();
    let share = |(service, interfaces): (ServiceName, BTreeSet<String>)| {
        let interfaces = shared.get(&interfaces).cloned().unwrap_or_else(|| {
            let interfaces = AnnouncedThrough::new(interfaces);
            shared.insert(Arc::clone(&interfaces));
            interfaces
        });
        (service, interfaces)
    };
    Some(services.into_iter().map(share).collect())
}

/// Dead nodes, and the Services that this node has begun to announce on their links meanwhile. Nodes that live keep
/// their objects right themselves.
fn list_taken_over(
    links: &[LinkView],
    before: &Services,
    now: &Services,
    known: &BTreeSet<(String, ServiceName)>,
) -> BTreeSet<(String, ServiceName)> {
    let peers = || links.iter().flat_map(|link| &link.peers);
    let alive: BTreeSet<&str> =
        peers().filter(|peer| !peer.silent).map(|peer| peer.node.as_str()).collect();
    let is_dead = |node: &str| !alive.contains(node) && peers().any(|peer| peer.node == node);
    let mut taken_over: BTreeSet<(String, ServiceName)> =
        known.iter().filter(|(node, _)| is_dead(node)).cloned().collect();
    for link in links {
        let dead = link.peers.iter().filter(|peer| !alive.contains(peer.node.as_str()));
        let dead: Vec<&str> = dead.map(|peer| peer.node.as_str()).collect();
        if dead.is_empty() {
            continue;
        }
        let is_new = |service: &ServiceName, interfaces: &AnnouncedThrough| {
            let before = before.get(service);
            interfaces.contains(&link.interface)
                && before.is_none_or(|before| !before.contains(&link.interface))
        };
        for (service, _) in now.iter().filter(|(service, through)| is_new(service, through)) {
            let room = MOST_TAKEN_OVER.saturating_sub(taken_over.len());
            let new = dead.iter().take(room);
            taken_over.extend(new.map(|node| ((*node).to_owned(), service.clone())));
        }
    }
    taken_over
}

#[cfg(test)]
mod tests {
    use lb_announce::{AddressView, PeerView};

    use super::*;

    /// A link with addresses: the Services that use each, and whether this node announces it.
    fn link(interface: &str, addresses: &[(&str, bool)], peers: &[(&str, bool)]) -> LinkView {
        let address = |(services, is_here): &(&str, bool)| AddressView {
            address: "192.0.2.1".parse().unwrap(),
            services: services.split_whitespace().map(str::to_owned).collect(),
            holder: None,
            epoch: None,
            held_seconds: None,
            blocked: false,
            candidates: true,
            why_not_here: (!is_here).then(|| "another node comes first".to_owned()),
        };
        let peer = |(node, silent): &(&str, bool)| PeerView {
            node: (*node).to_owned(),
            interface: "eth0".to_owned(),
            silent: *silent,
            deaf: false,
            holds: 0,
        };
        LinkView {
            interface: interface.to_owned(),
            addresses: addresses.iter().map(address).collect(),
            peers: peers.iter().map(peer).collect(),
            ..LinkView::default()
        }
    }

    fn shown(services: &Services) -> Vec<String> {
        services.iter().map(|(service, through)| format!("{service} {through:?}")).collect()
    }

    #[test]
    fn services_are_announced_where_this_node_holds_one_of_their_addresses() {
        let links = [
            link("eth0", &[("shop/web shop/api", true), ("shop/mail", false)], &[]),
            link("eth1", &[("shop/web", true), ("shop/mail", true), ("shop/web", false)], &[]),
        ];
        assert_eq!(
            shown(&list_announced_services(&links).unwrap()),
            ["shop/api {\"eth0\"}", "shop/mail {\"eth1\"}", "shop/web {\"eth0\", \"eth1\"}"]
        );
        assert_eq!(list_announced_services(&[]), Some(Services::new()));
    }

    /// The objects of an earlier agent are right meanwhile.
    #[test]
    fn nothing_is_known_while_services_of_a_held_address_are_unknown() {
        let adopted = [link("eth0", &[("shop/web", true), ("", true)], &[])];
        assert_eq!(list_announced_services(&adopted), None);
        let elsewhere = [link("eth0", &[("shop/web", true), ("", false)], &[])];
        assert!(list_announced_services(&elsewhere).is_some());
    }

    #[test]
    fn what_was_taken_over_from_dead_nodes_is_noted_and_nothing_of_living_ones() {
        let peers = [("dead", true), ("alive", false), ("moved", true)];
        let links = [
            link("eth0", &[("shop/kept", true), ("shop/new", true)], &peers),
            // Heard on another link: its agent runs, and keeps its objects right.
            link("eth1", &[("shop/other", true)], &[("moved", false)]),
        ];
        let before = [link("eth0", &[("shop/kept", true)], &peers)];
        let before = list_announced_services(&before).unwrap();
        let now = list_announced_services(&links).unwrap();
        let new = |node: &str| (node.to_owned(), ServiceName::new("shop", "new"));
        let taken = list_taken_over(&links, &before, &now, &BTreeSet::from([new("gone")]));
        assert_eq!(taken, BTreeSet::from([new("dead")]), "forgotten nodes are forgotten here, too");
        // It stays until the node lives.
        let later = list_taken_over(&links, &now, &now, &taken);
        assert_eq!(later, taken);
        let alive = [link("eth0", &[("shop/new", true)], &[("dead", false)])];
        assert!(list_taken_over(&alive, &now, &now, &taken).is_empty());
    }

    /// Without a key, a machine of the link can take part under any number of names.
    #[test]
    fn the_number_of_dead_nodes_and_services_is_bounded() {
        let nodes: Vec<String> = (0..128).map(|node| format!("node-{node}")).collect();
        let peers: Vec<(&str, bool)> = nodes.iter().map(|node| (node.as_str(), true)).collect();
        let names: Vec<String> = (0..1_000).map(|name| format!("shop/web-{name}")).collect();
        let addresses: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), true)).collect();
        let links = [link("eth0", &addresses, &peers)];
        let now = list_announced_services(&links).unwrap();
        let taken = list_taken_over(&links, &Services::new(), &now, &BTreeSet::new());
        assert_eq!(taken.len(), MOST_TAKEN_OVER);
    }
}
