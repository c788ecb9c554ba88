//! Where the agent reports to: notices, health, metrics, status and health checks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use lb_kernel::SnatPorts;
use lb_network::snat_ports::PortSet;
use lb_process::notices::{Notice, NoticeObject, NoticeReason, Notices};
use lb_rules::model::{HealthCheck, Kind, Node, ObjectRef, Problem, ServiceName};
use lb_rules::store::Store;
use lb_source::cluster::NodeTaints;
use lb_speakers::bgp::SpeakerCommand;
use lb_status::{Check, Condition, Health, HealthChecks, Metrics};
use tokio::sync::{mpsc, watch};

use super::announcer::{Beat, NodesByName, Wanted};

pub struct Outlets {
    pub notices: Arc<dyn Notices>,
    pub health: Arc<Health>,
    pub metrics: Arc<Metrics>,
    pub condition: Arc<Condition>,
    health_checks: HealthChecks,
    snat_ports: Option<SnatPorts>,
    announcer: Option<watch::Sender<Option<Arc<Wanted>>>>,
    nodes: Option<watch::Sender<NodesByName>>,
    beat: Beat,
    speaker: Option<mpsc::UnboundedSender<SpeakerCommand>>,
    taints: watch::Sender<NodeTaints>,
}

impl Outlets {
    pub fn new(notices: Arc<dyn Notices>, health: Arc<Health>, metrics: Arc<Metrics>) -> Self {
        let health_checks = HealthChecks::new(Arc::clone(&health), Arc::clone(&notices));
        Self {
            notices,
            health,
            metrics,
            condition: Arc::default(),
            health_checks,
            snat_ports: None,
            announcer: None,
            nodes: None,
            beat: Beat::default(),
            speaker: None,
            taints: watch::Sender::default(),
        }
    }

    pub(crate) fn with_condition(self, condition: Arc<Condition>) -> Self {
        Self { condition, ..self }
    }

    pub(crate) fn with_snat_ports(self, snat_ports: SnatPorts) -> Self {
        Self { snat_ports: Some(snat_ports), ..self }
    }

    pub(crate) fn with_announcer(
        self,
        announcer: watch::Sender<Option<Arc<Wanted>>>,
        beat: Beat,
    ) -> Self {
        Self { announcer: Some(announcer), beat, ..self }
    }

    /// Reports the addresses of nodes there.
    pub(crate) fn with_nodes(self, nodes: watch::Sender<NodesByName>) -> Self {
        Self { nodes: Some(nodes), ..self }
    }

    pub(crate) fn publish_nodes(&self, nodes: &NodesByName) {
        if let Some(publish) = &self.nodes {
            publish.send_if_modified(|known| {
                let is_new = known != nodes;
                if is_new {
                    known.clone_from(nodes);
                }
                is_new
            });
        }
    }

    /// The agent's loop runs.
    pub(crate) fn renew_beat(&self) {
        self.beat.renew();
    }

    pub(crate) fn with_speaker(self, speaker: mpsc::UnboundedSender<SpeakerCommand>) -> Self {
        Self { speaker: Some(speaker), ..self }
    }

    /// The taints of this agent's Node, after everything has been programmed.
    pub fn taints(&self) -> watch::Receiver<NodeTaints> {
        self.taints.subscribe()
    }

    pub(crate) fn publish_taints(&self, node: Option<&Node>) {
        let known = node.map(|node| (&*node.uid, &node.taints));
        self.taints.send_if_modified(|taints| {
            let (uid, keys) = known.map_or(("", &[][..]), |(uid, keys)| (uid, keys));
            if taints.uid == uid && taints.keys == keys {
                return false;
            }
            *taints = NodeTaints { uid: uid.to_owned(), keys: keys.to_vec() };
            true
        });
    }

    /// Tells the BGP speaker.
    pub fn advertise(&self, command: SpeakerCommand) {
        if let Some(speaker) = &self.speaker {
            // It ends with the process.
            let _ = speaker.send(command);
        }
    }

    /// Has these addresses announced, as far as this node may.
    pub fn announce(&self, wanted: Wanted) {
        if let Some(announcer) = &self.announcer {
            announcer.send_replace(Some(Arc::new(wanted)));
        }
    }

    /// Excludes the programmed NodePorts from SNAT.
    pub fn set_node_ports(&self, ports: PortSet) {
        if let Some(snat_ports) = &self.snat_ports {
            snat_ports.set_node_ports(ports);
        }
    }

    /// Posts a problem of an object or file.
    pub fn post(&self, problem: &Problem, reason: NoticeReason, store: &Store) {
        let reference = ObjectRef::parse(&problem.object);
        let Problem { field, message, .. } = problem;
        let message = match (field.is_empty(), reference.is_some()) {
            (true, true) => message.clone(),
            (false, true) => format!("{field}: {message}"),
            (_, false) => problem.to_string(),
        };
        let about = reference.map(|reference| about(reference, store));
        self.notices.post(Notice { about, reason, message });
    }

    /// Posts that a Service has no problems any more.
    pub(crate) fn post_fixed(&self, service: &ServiceName, reason: NoticeReason, store: &Store) {
        let (namespace, name) = (service.namespace.as_str(), service.name.as_str());
        let reference = ObjectRef::new(Kind::Service, Some(namespace), Some(name));
        let message = match reason {
            NoticeReason::RoomFound => "it fits into the maps of this node now, and is programmed",
            _ => "the problem is fixed, and it is programmed",
        };
        let about = Some(about(reference, store));
        self.notices.post(Notice { about, reason, message: message.to_owned() });
    }

    /// Posts that the endpoints of another node are set aside, or given back.
    pub(crate) fn post_node(&self, node: &str, reason: NoticeReason, store: &Store) {
        let reference = ObjectRef::new(Kind::Node, None, Some(node));
        let message = match reason {
            NoticeReason::NodeSetAside => {
                "no node hears its heartbeats, and it answers no connection: its endpoints get no new connections while \
                 their Services have others"
            }
            _ => "it lives: its endpoints get new connections",
        };
        let about = Some(about(reference, store));
        self.notices.post(Notice { about, reason, message: message.to_owned() });
    }

    /// Serves health checks on exactly these addresses of the node.
    pub fn set_node_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        self.health_checks.set_addresses(addresses);
    }

    /// Updates the health checks to what is programmed now. If two Services have the same port,
    /// which no API server allows, the first by name gets it.
    pub(crate) fn check_health(
        &mut self,
        checks: &BTreeMap<ServiceName, HealthCheck>,
        store: &Store,
    ) {
        let mut by_port = BTreeMap::new();
        for (service, HealthCheck { port, local_endpoints }) in checks {
            let (namespace, name) = (service.namespace.as_str(), service.name.as_str());
            let reference = ObjectRef::new(Kind::Service, Some(namespace), Some(name));
            by_port.entry(*port).or_insert_with(|| Check {
                service: service.clone(),
                about: about(reference, store),
                local_endpoints: *local_endpoints,
            });
        }
        self.health_checks.set(by_port);
    }
}

fn about(reference: ObjectRef, store: &Store) -> NoticeObject {
    NoticeObject { uid: store.uid(&reference).to_owned(), reference }
}
