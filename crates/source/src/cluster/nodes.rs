//! Which Nodes are watched: all only if a Service may be forwarded through tunnels.
//!
//! Every kubelet changes its Node now and then. If every agent watched all Nodes, the API server
//! would send a number of events that grows with the square of the number of nodes.

use lb_common::layout::Forwarding;
use lb_rules::model::{Object, is_tunnelled};
use tokio::sync::watch;

use crate::Event;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Only the agent's own Node.
    Own,
    /// Tunnels need the addresses of their ends.
    All,
}

/// Decides which Nodes are watched. Once that is all of them, it remains so: Services that come
/// and go must not cause lists.
#[derive(Debug)]
pub struct Scope {
    /// How Services are forwarded unless they say otherwise.
    forwarding: Forwarding,
    nodes: watch::Sender<Nodes>,
}

impl Scope {
    pub fn new(forwarding: Forwarding) -> Self {
        let all = forwarding != Forwarding::Masquerade;
        Self { forwarding, nodes: watch::Sender::new(if all { Nodes::All } else { Nodes::Own }) }
    }

    pub fn look_at(&self, event: &Event) {
        if let Event::Applied(Object::Service(service)) = event
            && is_tunnelled(service, self.forwarding)
        {
            self.watch_all();
        }
    }

    pub(crate) fn watch_all(&self) {
        self.nodes.send_if_modified(|nodes| std::mem::replace(nodes, Nodes::All) != Nodes::All);
    }

    pub fn follow(&self) -> watch::Receiver<Nodes> {
        self.nodes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use lb_rules::model::Kind;
    use serde_json::json;

    use super::*;
    use crate::Extent;

    fn applied(forwarding: Option<&str>) -> Event {
        let annotations = forwarding.map(|name| json!({"millrace.io/forwarding": name}));
        let service = json!({"metadata": {"name": "web", "annotations": annotations}});
        Event::Applied(Object::read(Kind::Service, service).unwrap())
    }

    #[test]
    fn all_nodes_are_watched_from_the_first_service_with_a_tunnel_on() {
        let scope = Scope::new(Forwarding::Masquerade);
        let nodes = scope.follow();
        for (event, expected) in [
            (applied(None), Nodes::Own),
            (applied(Some("masquerade")), Nodes::Own),
            (Event::Synced(Extent::All), Nodes::Own),
            (applied(Some("ipip")), Nodes::All),
            (applied(None), Nodes::All),
        ] {
            scope.look_at(&event);
            assert_eq!(*nodes.borrow(), expected, "{event:?}");
        }
    }

    #[test]
    fn with_tunnels_by_default_all_nodes_are_watched() {
        assert_eq!(*Scope::new(Forwarding::Gue).follow().borrow(), Nodes::All);
    }
}
