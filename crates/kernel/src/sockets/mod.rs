//! Closes sockets of processes on this node that are connected to removed backends, and those of UDP
//! whose backend has left their Service.
//!
//! The programs run only when a socket connects, not for the packets of the connection. So a socket
//! would stay connected to a backend that is gone, unless it is closed from here.

mod diagnosis;
mod stale;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, Map, MapData, MapError};
use lb_common::datapath::PacketFamily;
use lb_common::family::{Address4, Address6, Family, V4, V6};
use lb_common::layout::{Backend, SocketFlow, map};
use lb_plan::{Datagrams, Step};

pub(super) use self::diagnosis::Diagnosis;
use self::stale::{SocketView, is_stale};
use super::backlog::BacklogTables;
use super::pins::Pins;
use super::plain::Plain;
use crate::privileges::Privileges;

type Flows<F> = HashMap<MapData, u64, Plain<SocketFlow<F>>>;
type Backends<F> = Array<MapData, Plain<Backend<<F as Family>::Address>>>;

/// Sockets are checked again this long after a backend was removed: a process may have been between
/// the choice of the backend and the connection.
const AGAIN: Duration = Duration::from_secs(1);

/// Tables that close the sockets connected to a backend when it is removed.
pub struct WithSockets<T> {
    tables: T,
    /// With the flows of datagrams that have ended; backends that are gone are found in the maps.
    changed: Sender<Datagrams>,
}

impl<T> WithSockets<T> {
    /// Checks at once: an earlier agent may have ended after removing a backend and before closing
    /// its sockets.
    pub fn new(tables: T, pins: &Pins) -> Result<Self> {
        let (changed, changes) = channel();
        let held = SocketMaps::open(pins)?;
        match Diagnosis::open() {
            Ok(mut diagnosis) => {
                thread::Builder::new().name("stale sockets".into()).spawn(move || {
                    // This thread starts before everything is attached, and attaches nothing
                    // itself.
                    if let Err(error) = Privileges::AGENT.once_attached() {
                        tracing::warn!(error = format!("{error:#}"), "capabilities not dropped");
                    }
                    watch(&held, &mut diagnosis, &changes);
                })?;
            }
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "sockets cannot be listed; those connected to removed backends stay open"
            ),
        }
        let with_sockets = Self { tables, changed };
        with_sockets.check(Datagrams::default());
        Ok(with_sockets)
    }

    /// Returns at once: another thread lists the sockets.
    fn check(&self, datagrams: Datagrams) {
        // Without a receiver, sockets cannot be listed; this has been logged.
        let _ = self.changed.send(datagrams);
    }
}

impl<T: BacklogTables> BacklogTables for WithSockets<T> {
    fn execute_step(&mut self, step: &Step) -> Result<()> {
        self.tables.execute_step(step)?;
        match step {
            Step::RetireBackend { .. } => self.check(Datagrams::default()),
            Step::SweepFlows(sweep) if !sweep.datagrams.is_empty() => {
                self.check(sweep.datagrams.clone());
            }
            _ => {}
        }
        Ok(())
    }

    fn change_devices(
        &mut self,
        devices: &BTreeMap<u32, Option<lb_network::Device>>,
    ) -> Result<()> {
        self.tables.change_devices(devices)
    }

    fn set_node_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<()> {
        self.tables.set_node_addresses(addresses)
    }

    fn next_epoch(&mut self) {
        self.tables.next_epoch();
    }

    fn lease_epoch(&mut self, shares_hops: bool) {
        self.tables.lease_epoch(shares_hops);
    }

    fn end_epoch_lease(&mut self) {
        self.tables.end_epoch_lease();
    }
}

/// Runs until the agent ends.
fn watch(tables: &SocketMaps, diagnosis: &mut Diagnosis, changes: &Receiver<Datagrams>) {
    let mut complained = String::new();
    let mut look = |datagrams: &Datagrams| match end_stale(tables, diagnosis, datagrams) {
        Ok(()) => complained.clear(),
        Err(error) => {
            let error = format!("{error:#}");
            if error != complained {
                tracing::warn!(error, "sockets connected to removed backends not closed");
            }
            complained = error;
        }
    };
    while let Ok(mut datagrams) = changes.recv() {
        loop {
            // Merges changes: only the latest state matters.
            while let Ok(later) = changes.try_recv() {
                datagrams.add(later);
            }
            look(&datagrams);
            match changes.recv_timeout(AGAIN) {
                Ok(later) => datagrams = later,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        // Only for backends that are gone: others may have come back to their Service.
        look(&Datagrams::default());
    }
}

fn end_stale(tables: &SocketMaps, diagnosis: &mut Diagnosis, datagrams: &Datagrams) -> Result<()> {
    let mut ended = 0;
    for socket in diagnosis.connected(|socket| is_stale(socket, datagrams, tables))? {
        ended += usize::from(diagnosis.destroy(&socket)?);
    }
    if ended > 0 {
        tracing::info!(sockets = ended, "closed sockets connected to removed backends");
    }
    Ok(())
}

/// The maps, opened independently of their writer.
struct SocketMaps {
    connected4: Flows<V4>,
    connected6: Flows<V6>,
    backends4: Backends<V4>,
    backends6: Backends<V6>,
}

impl SocketMaps {
    fn open(pins: &Pins) -> Result<Self> {
        Ok(Self {
            connected4: open(pins, map::CONNECTED4)?.try_into()?,
            connected6: open(pins, map::CONNECTED6)?.try_into()?,
            backends4: open(pins, map::BACKENDS4)?.try_into()?,
            backends6: open(pins, map::BACKENDS6)?.try_into()?,
        })
    }
}

impl SocketView<V4> for SocketMaps {
    fn flow(&self, cookie: u64) -> Option<SocketFlow<V4>> {
        flow(&self.connected4, cookie)
    }

    fn backend(&self, index: u32) -> Option<Backend<Address4>> {
        self.backends4.get(&index, 0).ok().map(|Plain(backend)| backend)
    }
}

impl SocketView<V6> for SocketMaps {
    fn flow(&self, cookie: u64) -> Option<SocketFlow<V6>> {
        flow(&self.connected6, cookie)
    }

    fn backend(&self, index: u32) -> Option<Backend<Address6>> {
        self.backends6.get(&index, 0).ok().map(|Plain(backend)| backend)
    }
}

fn flow<F: PacketFamily>(flows: &Flows<F>, cookie: u64) -> Option<SocketFlow<F>>
where
    Plain<SocketFlow<F>>: aya::Pod,
{
    match flows.get(&cookie, 0) {
        Ok(Plain(flow)) => Some(flow),
        Err(MapError::KeyNotFound) => None,
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "flow of a socket not read");
            None
        }
    }
}

fn open(pins: &Pins, name: &str) -> Result<Map> {
    let path = pins.map(name);
    let data =
        MapData::from_pin(&path).with_context(|| format!("{} can't be opened", path.display()))?;
    Ok(Map::from_map_data(data)?)
}
