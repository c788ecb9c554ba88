//! Tells the BGP speaker this node's peers and routes, and whether the node is drained.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lb_process::notices::NoticeReason;
use lb_rules::ipam::Labels;
use lb_rules::model::{Kind, Problem, ServiceName, ServicePort};
use lb_rules::store::Store;
use lb_speakers::bgp::{ConfiguredPeer, RouteAdvertiser, SpeakerCommand};

use super::announcement_objects::AnnouncementObjects;
use super::outlets::Outlets;

#[derive(Default)]
pub(crate) struct Advertiser {
    advertising: RouteAdvertiser,
    /// Peers, passwords, pools or this node have changed.
    is_changed: bool,
    peers: BTreeMap<String, ConfiguredPeer>,
    problems: BTreeSet<Problem>,
    /// Of advertisements of cluster IPs and external IPs.
    of_services: Vec<Problem>,
    /// Addresses that are not advertised, because how is not known.
    outside: BTreeSet<Problem>,
    is_draining: bool,
    is_synced: bool,
}

impl Advertiser {
    /// Pools, peers or this node have changed.
    pub fn note_change(&mut self) {
        self.is_changed = true;
        self.advertising.note_change();
    }

    /// Notes the service ports of a Service; none if it has been deleted.
    pub fn set<'a>(
        &mut self,
        service: &ServiceName,
        labels: Option<&Labels>,
        is_assigned: bool,
        ports: impl Iterator<Item = &'a Arc<ServicePort>>,
    ) {
        self.advertising.set_service(service, labels, is_assigned, ports);
    }

    /// Whether other cluster IPs and external IPs are advertised than before. Then all Services must be set anew before
    /// the next routes: the first ones must be complete.
    pub(crate) fn renew_service_advertisements(
        &mut self,
        node_name: &str,
        store: &Store,
        objects: &AnnouncementObjects,
    ) -> bool {
        if !self.is_changed {
            return false;
        }
        let (peers, _) = objects.peers().list_node_peers(node_name, store.node(node_name));
        let (wanted, problems) = objects.peers().list_service_advertisements(&peers);
        self.of_services = problems;
        self.advertising.set_service_advertisements(wanted)
    }

    /// After Services have been programmed: what is not must attract no packets.
    pub fn tell(
        &mut self,
        node_name: &str,
        store: &Store,
        objects: &AnnouncementObjects,
        outlets: &Outlets,
    ) {
        let node = store.node(node_name);
        let routes = self.advertising.take_routes(objects.pools(), node.map(|node| &node.labels));
        if !routes.is_empty() {
            outlets.advertise(SpeakerCommand::Routes(routes));
        }
        if std::mem::take(&mut self.is_changed) {
            let is_draining = node.is_some_and(|node| !node.announces);
            if std::mem::replace(&mut self.is_draining, is_draining) != is_draining {
                outlets.advertise(SpeakerCommand::Drain(is_draining));
            }
            let (peers, problems) = objects.peers().list_node_peers(node_name, node);
            if peers != self.peers {
                self.peers.clone_from(&peers);
                outlets.advertise(SpeakerCommand::Peers(peers));
            }
            outlets.condition.set_bgp_peers_of_others(objects.peers().list_other_peers(node));
            let problems = problems.into_iter().chain(self.of_services.clone()).collect();
            self.post(problems, store, objects, outlets);
        }
        self.post_outside(store, outlets);
        if !std::mem::replace(&mut self.is_synced, true) {
            outlets.advertise(SpeakerCommand::Synced);
        }
    }

    /// Posts problems of peers and advertisements, each once. Those of pools are the controller's.
    fn post(
        &mut self,
        of_peers: Vec<Problem>,
        store: &Store,
        objects: &AnnouncementObjects,
        outlets: &Outlets,
    ) {
        let of_advertisements = objects.pools().problems().iter();
        let of_advertisements = of_advertisements
            .filter(|(reference, _)| Kind::OF_BGP.contains(&reference.kind))
            .flat_map(|(_, problems)| problems.clone());
        let unknown = objects.pools().unknown_peers(&objects.peers().names());
        let problems: BTreeSet<Problem> =
            of_peers.into_iter().chain(of_advertisements).chain(unknown).collect();
        for problem in problems.difference(&self.problems) {
            outlets.post(problem, NoticeReason::PeerNotUsed, store);
        }
        self.problems = problems;
        self.show_problems(outlets);
    }

    /// Posts addresses that are advertised to no peer since this agent has started.
    fn post_outside(&mut self, store: &Store, outlets: &Outlets) {
        let unknown = self.advertising.unknown_addresses().filter(|_| !self.peers.is_empty());
        let outside = unknown.map(|(service, address)| Problem {
            object: format!("Service {service}"),
            field: String::new(),
            message: format!(
                "{address} is in no address pool, and this agent does not know to which BGP peers \
                 it was advertised: it is not advertised. Add it to a pool"
            ),
        });
        let outside: BTreeSet<Problem> = outside.collect();
        if outside == self.outside {
            return;
        }
        for problem in outside.difference(&self.outside) {
            outlets.post(problem, NoticeReason::AddressOutsidePools, store);
        }
        self.outside = outside;
        self.show_problems(outlets);
    }

    fn show_problems(&self, outlets: &Outlets) {
        let all = self.problems.iter().chain(&self.outside);
        outlets.condition.set_bgp_problems(all.map(ToString::to_string).collect());
    }
}
