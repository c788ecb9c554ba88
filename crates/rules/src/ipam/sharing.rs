//! Whether two Services may have the same address.

use super::request::AddressRequest;

#[derive(Debug, PartialEq, Eq)]
pub enum Sharing {
    Allowed,
    /// The Services don't name the same key.
    NotShared,
    /// The Services name the same key; completes "shares its key with default/web, but ...".
    Conflict(String),
}

/// Whether two Services may share an address, in either order.
pub(crate) fn compare_requests(one: &AddressRequest, other: &AddressRequest) -> Sharing {
    if one.sharing_key.is_none() || one.sharing_key != other.sharing_key {
        return Sharing::NotShared;
    }
    if let Some((protocol, port)) = one.ports.intersection(&other.ports).next() {
        let port = format!("{} port {port}", protocol.name());
        return Sharing::Conflict(format!("both have {port}: give one of them another port"));
    }
    // Packets for an address reach the nodes that serve one of them: with policy Local these must be the same nodes.
    if one.local_backends != other.local_backends {
        let message = "with externalTrafficPolicy Local both need that policy and the same selector: set it to Cluster \
                       in both";
        return Sharing::Conflict(message.to_owned());
    }
    Sharing::Allowed
}
