//! Reports news of an election: in the log, and as Events of Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use lb_announce::{ElectionEvent, LinkAddress, format_link_address};
use lb_process::notices::{Notice, NoticeObject, NoticeReason, Notices};
use lb_rules::model::{Kind, ObjectRef, ServiceName};
use tokio::runtime::Handle;

use super::wanted::Wanted;

/// Writes news to the log and, with a cluster, as Events of the Service.
pub(crate) struct Post<'a> {
    pub node_name: &'a str,
    pub interface: &'a str,
    pub wanted: Option<&'a Wanted>,
    pub notices: &'a Arc<dyn Notices>,
    pub main: &'a Handle,
}

impl Post<'_> {
    pub fn post(&self, news: &ElectionEvent, in_use: &mut BTreeSet<(IpAddr, LinkAddress)>) {
        let interface = self.interface;
        match news {
            ElectionEvent::Taken { address, epoch, planned, .. } => {
                in_use.retain(|(other, _)| other != address);
                tracing::info!(%address, interface, epoch, planned, "address taken");
                let message =
                    format!("{address} is announced by {} on {interface}", self.node_name);
                self.post_to_services(*address, NoticeReason::AddressAnnounced, message);
            }
            ElectionEvent::Released { address, to } => {
                let to = to.map(|id| id.to_string());
                tracing::info!(%address, interface, to, "address released");
            }
            ElectionEvent::InUse { address, by } | ElectionEvent::Disputed { address, by } => {
                if in_use.insert((*address, *by)) {
                    self.post_conflict(
                        *address,
                        *by,
                        matches!(news, ElectionEvent::Disputed { .. }),
                    );
                }
            }
            ElectionEvent::Joined(id) => tracing::info!(peer = %id, interface, "peer heard"),
            ElectionEvent::Silent(id) => tracing::info!(peer = %id, interface, "peer silent"),
            ElectionEvent::Namesake => {
                let fix = "give all nodes different names; set a tunnel key to exclude strangers";
                tracing::warn!(interface, fix, "another process uses this node's name");
            }
            ElectionEvent::SameName { by } => {
                let (by, fix) = (format_link_address(*by), "give all nodes different names");
                tracing::error!(
                    interface,
                    by,
                    fix,
                    "another machine announces under this node's name; addresses have two holders"
                );
            }
            ElectionEvent::Paused(duration) => {
                let milliseconds = duration.as_millis() as u64;
                tracing::warn!(milliseconds, interface, "the agent did not run for a while");
            }
            ElectionEvent::Left => tracing::info!(interface, "all addresses handed over"),
        }
    }

    fn post_conflict(&self, address: IpAddr, by: LinkAddress, announced: bool) {
        let by = format_link_address(by);
        let interface = self.interface;
        let consequence = if announced {
            "both answer for it now"
        } else {
            "it is not announced until that machine no longer answers for it"
        };
        let message = format!(
            "{address} is used by the machine with the link-layer address {by} on {interface}: \
             {consequence}. Remove the address there, or exclude it from the pool"
        );
        self.post_to_services(address, NoticeReason::AddressInUse, message);
    }

    /// Posts to all Services that have the address.
    fn post_to_services(&self, address: IpAddr, reason: NoticeReason, message: String) {
        let services = self.wanted.and_then(|wanted| wanted.addresses.get(&address));
        let services: BTreeMap<ServiceName, Box<str>> =
            services.map(|wanted| wanted.services.clone()).unwrap_or_default();
        let notices = Arc::clone(self.notices);
        self.main.spawn(async move {
            for (service, uid) in services {
                let reference =
                    ObjectRef::new(Kind::Service, Some(&service.namespace), Some(&service.name));
                let about = Some(NoticeObject { reference, uid: uid.into() });
                notices.post(Notice { about, reason, message: message.clone() });
            }
        });
    }
}
