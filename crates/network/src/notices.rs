//! The kernel's notifications: from two sockets, as one stream.

use std::future::pending;
use std::io;

use anyhow::Result;

use super::message;
use super::netdev::{self, NetdevFamily};
use super::requests::read_snapshot;
use super::snapshot::{ChangeEffect, Snapshot};
use super::socket::NetlinkSocket;
use crate::netlink::split_messages;

/// The number of datagrams after which changes are reported even if more are waiting.
const MAX_DATAGRAMS_PER_BATCH: usize = 4096;

pub(crate) struct NetworkSubscription {
    route: NetlinkSocket,
    /// `None` if the kernel has no such family.
    netdev: Option<(NetdevFamily, NetlinkSocket)>,
}

impl NetworkSubscription {
    /// Subscribes, and then reads the present state, so that no later change is missed.
    pub async fn subscribe() -> Result<(Self, Snapshot)> {
        let route = NetlinkSocket::for_notices()?;
        let netdev = match netdev::find_netdev_family().await? {
            Some(netdev) => Some((netdev, NetlinkSocket::for_group(netdev.group)?)),
            None => None,
        };
        let snapshot = read_snapshot(netdev.as_ref().map(|&(netdev, _)| netdev)).await?;
        Ok((Self { route, netdev }, snapshot))
    }

    /// Waits for notifications.
    pub async fn readable(&self) -> io::Result<()> {
        let netdev = async {
            match &self.netdev {
                Some((_, socket)) => socket.readable().await,
                None => pending().await,
            }
        };
        tokio::select! {
            readable = self.route.readable() => readable,
            readable = netdev => readable,
        }
    }

    /// Applies the notifications that are waiting.
    pub fn take_in(&mut self, snapshot: &mut Snapshot) -> io::Result<ChangeEffect> {
        let mut effect = ChangeEffect::default();
        for _ in 0..MAX_DATAGRAMS_PER_BATCH {
            let Some(datagram) = self.route.try_receive()? else { break };
            for message in split_messages(datagram) {
                let message = message?;
                let notice = message::parse_change(message.kind, message.body);
                effect = notice.into_iter().fold(effect, |e, notice| e.and(snapshot.apply(notice)));
            }
        }
        let Some((netdev, socket)) = &mut self.netdev else { return Ok(effect) };
        for _ in 0..MAX_DATAGRAMS_PER_BATCH {
            let Some(datagram) = socket.try_receive()? else { break };
            for message in split_messages(datagram) {
                let message = message?;
                let notice = netdev::parse_netdev_change(*netdev, message.kind, message.body);
                effect = notice.into_iter().fold(effect, |e, notice| e.and(snapshot.apply(notice)));
            }
        }
        Ok(effect)
    }
}
