//! Whether a frame is for this machine. A bridge that floods, or a switch that has forgotten where a
//! receiver is, delivers frames to all nodes, and a promiscuous interface takes them: only the node
//! to which a frame is addressed may serve it, or requests would be duplicated.
//!
//! Frames to groups are for all. Those of pods are exempt: a pod behind a bridge sends them to its
//! gateway, which need not be the interface that they pass. An interface without known addresses
//! takes all frames.

use crate::datapath::tables::NetworkTables;
use crate::datapath::wire::packet::{Packet, Role};
use crate::header::Ethernet;
use crate::layout::LinkAddresses;
use crate::word::link_address;

/// Whether this machine is the receiver.
#[inline(always)]
pub fn is_receiver<P: Packet, T: NetworkTables>(packet: &P, tables: &T) -> bool {
    if packet.is_received() || packet.role() != Role::External || packet.is_raw() {
        return true;
    }
    let Some(Ethernet { destination, .. }) = packet.header(0) else { return true };
    let receiver = link_address(destination);
    let device = packet.device();
    let (bucket, wanted) = (LinkAddresses::bucket(device), LinkAddresses::word(device, receiver));
    // Nearly always the first one.
    if tables.link_address(bucket) == wanted || receiver[0] & 1 != 0 {
        return true;
    }
    tables.takes(device, wanted)
}
