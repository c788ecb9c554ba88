//! The objects that say which addresses are announced, and where: pools of addresses, and BGP peers.

use lb_rules::ipam::Pools;
use lb_rules::model::{Kind, Object, ObjectRef};
use lb_speakers::bgp::PeerObjects;

#[derive(Debug, Default)]
pub(crate) struct AnnouncementObjects {
    pools: Pools,
    peers: PeerObjects,
    has_changed: bool,
}

impl AnnouncementObjects {
    /// With pools that no object defines.
    pub(crate) fn with_pools(pools: Pools) -> Self {
        Self { pools, ..Self::default() }
    }

    /// Pools of addresses, and where these are announced.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    pub fn peers(&self) -> &PeerObjects {
        &self.peers
    }

    /// Ignores objects of other kinds.
    pub fn apply(&mut self, object: &Object) {
        self.has_changed |= match object {
            Object::AddressPool(_)
            | Object::IpAddressPool(_)
            | Object::L2Advertisement(_)
            | Object::BgpAdvertisement(_)
            | Object::Community(_) => self.pools.apply(object),
            Object::BgpPeer(_)
            | Object::MetallbBgpPeer(_)
            | Object::BfdProfile(_)
            | Object::Secret(_) => self.peers.apply_object(object),
            _ => false,
        };
    }

    pub fn delete(&mut self, reference: &ObjectRef) {
        self.has_changed |= match reference.kind {
            Kind::AddressPool
            | Kind::IpAddressPool
            | Kind::L2Advertisement
            | Kind::BgpAdvertisement
            | Kind::Community => self.pools.delete(reference),
            Kind::BgpPeer | Kind::MetallbBgpPeer | Kind::BfdProfile | Kind::Secret => {
                self.peers.delete_object(reference)
            }
            _ => false,
        };
    }

    /// Whether pools or BGP peers have changed since the last call, by more than their status.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}
