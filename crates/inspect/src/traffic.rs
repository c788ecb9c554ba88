//! Counters of packets, bytes and flows.

use lb_common::layout;
use serde::Serialize;

/// Counters since the service port or backend was added to the maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    pub new_flows: u64,
    /// Forward: from clients to backends.
    pub forward_packets: u64,
    pub forward_bytes: u64,
    pub reverse_packets: u64,
    pub reverse_bytes: u64,
}

impl From<layout::Traffic> for Traffic {
    fn from(counted: layout::Traffic) -> Self {
        let layout::Traffic {
            forward_packets,
            forward_bytes,
            reverse_packets,
            reverse_bytes,
            new_flows,
        } = counted;
        Self { new_flows, forward_packets, forward_bytes, reverse_packets, reverse_bytes }
    }
}

impl Traffic {
    /// The sum of several.
    pub fn sum(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(Self::default(), |sum, one| Self {
            new_flows: sum.new_flows + one.new_flows,
            forward_packets: sum.forward_packets + one.forward_packets,
            forward_bytes: sum.forward_bytes + one.forward_bytes,
            reverse_packets: sum.reverse_packets + one.reverse_packets,
            reverse_bytes: sum.reverse_bytes + one.reverse_bytes,
        })
    }
}
