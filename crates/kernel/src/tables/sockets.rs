//! The flows of sockets that are not connected: reads and ends them.
//!
//! A socket whose flow has ended chooses a backend with its next datagram. The entry for replies stays:
//! the last ones may arrive later.

use std::collections::BTreeSet;

use anyhow::Result;
use lb_common::datapath::PacketFamily;
use lb_common::layout::{Backend, Side, SocketEnd, SocketFlow};
use lb_plan::{DatagramFlow, Datagrams};

use crate::hash_table::HashTable;
use crate::mapped::Mapped;
use crate::plain::{Layout, Plain};
use crate::removal::ignore_missing;

pub(crate) type Unconnected<F> = HashTable<Plain<SocketEnd<F>>, Plain<SocketFlow<F>>>;

/// Leaves out flows that the programs end by themselves, because their backend's entry is gone or
/// draining.
pub fn list_socket_datagrams<F: PacketFamily>(
    unconnected: &Unconnected<F>,
    backends: &Mapped,
) -> Result<BTreeSet<DatagramFlow>>
where
    Backend<F::Address>: Layout,
{
    let stays = |flow: &SocketFlow<F>| {
        let index = flow.backend_index;
        let backend: Option<Backend<F::Address>> =
            (index < backends.len()).then(|| backends.load(index));
        backend.is_some_and(|backend| flow.leads_to(&backend) && !backend.is_draining())
    };
    let found = unconnected.entries()?.into_iter();
    let sent = found.filter(|(Plain(end), Plain(flow))| end.side == SENDS && stays(flow));
    Ok(sent.map(|(_, Plain(flow))| DatagramFlow::from(&flow)).collect())
}

/// Ends the flows that may not stay.
pub fn sweep_sockets<F: PacketFamily>(
    unconnected: &mut Unconnected<F>,
    datagrams: &Datagrams,
) -> Result<()> {
    for (end, Plain(flow)) in unconnected.entries()? {
        if end.0.side == SENDS && !datagrams.may_stay(&(&flow).into()) {
            ignore_missing(unconnected.remove(&end))?;
        }
    }
    Ok(())
}

/// The side of the entry by which a socket's datagrams are sent.
const SENDS: u8 = Side::Frontend as u8;
