//! The kernel's notifications: from two sockets, as one stream.

use std::future::pending;
use std::io;

use anyhow::Result;

use super::message;
use super::netdev::{self, Netdev};
use super::requests::read_everything;
use super::snapshot::{Effect, Snapshot};
use super::socket::Socket;
use crate::netlink::messages;

/// The number of datagrams after which changes are reported even if more are waiting.
const BATCH: usize = 4096;

pub struct Notices {
    route: Socket,
    /// `None` if the kernel has no such family.
    netdev: Option<(Netdev, Socket)>,
}

impl Notices {
    /// Subscribes, and then reads the present state, so that no later change is missed.
    pub async fn subscribe() -> Result<(Self, Snapshot)> {
        let route = Socket::for_notices()?;
        let netdev = match netdev::find().await? {
            Some(netdev) => Some((netdev, Socket::for_group(netdev.group)?)),
            None => None,
        };
        let snapshot = read_everything(netdev.as_ref().map(|&(netdev, _)| netdev)).await?;
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
    pub fn take_in(&mut self, snapshot: &mut Snapshot) -> io::Result<Effect> {
        let mut effect = Effect::default();
        for _ in 0..BATCH {
            let Some(datagram) = self.route.try_receive()? else { break };
            for message in messages(datagram) {
                let message = message?;
                let notice = message::notice(message.kind, message.body);
                effect = notice.into_iter().fold(effect, |e, notice| e.and(snapshot.apply(notice)));
            }
        }
        let Some((netdev, socket)) = &mut self.netdev else { return Ok(effect) };
        for _ in 0..BATCH {
            let Some(datagram) = socket.try_receive()? else { break };
            for message in messages(datagram) {
                let message = message?;
                let notice = netdev::notice(*netdev, message.kind, message.body);
                effect = notice.into_iter().fold(effect, |e, notice| e.and(snapshot.apply(notice)));
            }
        }
        Ok(effect)
    }
}
