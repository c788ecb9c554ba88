//! Has what this node announces written as objects of MetalLB's kinds: what `millrace announcements` and `millrace bgp`
//! show, by Service.
//!
//! # Invariants
//! - Nothing is written before all is known: objects of an earlier agent stay meanwhile.
//! - The threads that announce never wait for it: it looks at what they have reported, once a second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
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

    /// This node no longer announces anything: deletes its objects, those of all kinds at once.
    pub async fn withdraw(mut self) {
        self.tasks.shutdown().await;
        let deletions = self.writers.into_iter().map(async |writer| {
            let deleted = timeout(WITHDRAWAL_LIMIT, writer.delete_all()).await;
            let late = || Err(format!("no response within {} s", WITHDRAWAL_LIMIT.as_secs()));
            if let Err(error) = deleted.unwrap_or_else(|_| late()) {
                let kind = writer.kind().name();
                tracing::warn!(error, kind, "objects of this node's announcements not deleted");
            }
        });
        join_all(deletions).await;
    }
}

async fn follow_links(
    condition: Arc<Condition>,
    publish: watch::Sender<Option<AnnouncedServices>>,
) {
    let mut read_links = None;
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(links) = condition.announcements() else { continue };
        if read_links.as_ref().is_some_and(|read| Arc::ptr_eq(read, &links)) {
            continue;
        }
        if let Some(announced) = list_announced_services(&links) {
            publish_change(&publish, &announced);
        }
        read_links = Some(links);
    }
}

async fn follow_bgp(condition: Arc<Condition>, publish: watch::Sender<Option<AnnouncedServices>>) {
    let mut read_services = None;
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(services) = condition.bgp().services.clone() else { continue };
        if read_services.as_ref().is_some_and(|read| Arc::ptr_eq(read, &services)) {
            continue;
        }
        publish_change(&publish, &services);
        read_services = Some(services);
    }
}

fn publish_change(
    publish: &watch::Sender<Option<AnnouncedServices>>,
    announced: &AnnouncedServices,
) {
    publish.send_if_modified(|current| {
        let is_new = current.as_ref() != Some(announced);
        if is_new {
            *current = Some(announced.clone());
        }
        is_new
    });
}

/// The Services that this node announces on links, with the names of the interfaces. `None`: of an address that an
/// earlier agent announced, the Services are not known yet.
fn list_announced_services(links: &[LinkView]) -> Option<AnnouncedServices> {
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

#[cfg(test)]
mod tests {
    use lb_announce::AddressView;

    use super::*;

    /// A link with addresses: the Services that use each, and whether this node announces it.
    fn link(interface: &str, addresses: &[(&str, bool)]) -> LinkView {
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
        LinkView {
            interface: interface.to_owned(),
            addresses: addresses.iter().map(address).collect(),
            ..LinkView::default()
        }
    }

    fn shown(services: &AnnouncedServices) -> Vec<String> {
        services.iter().map(|(service, through)| format!("{service} {through:?}")).collect()
    }

    #[test]
    fn services_are_announced_where_this_node_holds_one_of_their_addresses() {
        let links = [
            link("eth0", &[("shop/web shop/api", true), ("shop/mail", false)]),
            link("eth1", &[("shop/web", true), ("shop/mail", true), ("shop/web", false)]),
        ];
        assert_eq!(
            shown(&list_announced_services(&links).unwrap()),
            ["shop/api {\"eth0\"}", "shop/mail {\"eth1\"}", "shop/web {\"eth0\", \"eth1\"}"]
        );
        assert_eq!(list_announced_services(&[]), Some(AnnouncedServices::new()));
    }

    /// The objects of an earlier agent are right meanwhile.
    #[test]
    fn nothing_is_known_while_services_of_a_held_address_are_unknown() {
        let adopted = [link("eth0", &[("shop/web", true), ("", true)])];
        assert_eq!(list_announced_services(&adopted), None);
        let elsewhere = [link("eth0", &[("shop/web", true), ("", false)])];
        assert!(list_announced_services(&elsewhere).is_some());
    }
}
