//! The inputs of a session, its effects, and its events.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::config::NextHops;
use crate::family::Family;
use crate::route::RouteAttributes;
use crate::wire::{Notification, Reason};

/// A TCP connection. The caller numbers them, and never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A prefix, and what to announce about it; `None`: no longer.
pub type RouteChange = (IpNet, Option<Arc<RouteAttributes>>);

#[derive(Clone, Debug)]
pub enum BgpInput<'a> {
    Start,
    Stop(SessionStop),
    Connected {
        connection: ConnectionId,
        outgoing: bool,
        next_hops: NextHops,
    },
    ConnectFailed,
    Received {
        connection: ConnectionId,
        octets: &'a [u8],
    },
    /// The kernel has accepted octets of an earlier [`BgpEffect::Send`].
    Written {
        connection: ConnectionId,
        octets: usize,
    },
    /// This node's addresses towards the peer, which may have changed since the connection began.
    NextHops {
        connection: ConnectionId,
        next_hops: NextHops,
    },
    /// By the peer, or with an error. Not after [`BgpEffect::Close`].
    Closed {
        connection: ConnectionId,
    },
    /// BFD has found the path to the peer broken (RFC 9384).
    BfdDown,
    Routes(&'a [RouteChange]),
    /// The routes are complete: all Services have been read once.
    Synced,
    /// Whether the peer should prefer other nodes (RFC 8326).
    Drain(bool),
    /// The time of [`BgpSession::deadline`](super::Session::deadline) has come.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionStop {
    /// The text is for the peer's operator.
    Shutdown(String),
    /// The process is replaced: no NOTIFICATION, so that the peer keeps the routes (RFC 4724).
    Restart,
    /// The peer was removed from the configuration.
    Removed,
    /// The peer's configuration has changed; a new session follows.
    Changed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BgpEffect {
    /// Open a connection; ends in `Connected` or `ConnectFailed`.
    Connect,
    /// Abandon the attempt to connect. No input about it follows.
    AbandonConnect,
    Send {
        connection: ConnectionId,
        octets: Vec<u8>,
    },
    /// After what was sent before has been written, as far as that takes no time.
    Close {
        connection: ConnectionId,
        /// Whether a NOTIFICATION was the last message: then the peer closes the connection, and is left the time for it.
        /// FRR forgets a message that it has not handled yet when it sees the end of the connection.
        is_notified: bool,
    },
    Report(BgpReport),
}

/// For logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BgpReport {
    Established(EstablishedSession),
    /// The families of the established session that have a next hop now.
    Families(BTreeSet<Family>),
    /// An established session has ended.
    Down(SessionEndReason),
    /// A connection has ended before the session was established.
    Failed(SessionEndReason),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EstablishedSession {
    pub peer_as: u32,
    pub identifier: Ipv4Addr,
    /// Of both sides; zero: none.
    pub hold_time: Duration,
    /// Of both sides, and with a next hop.
    pub families: BTreeSet<Family>,
    /// For how long the peer keeps routes without a session.
    pub graceful_restart: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEndReason {
    ConnectFailed,
    Closed,
    Sent(Notification),
    Received(Notification),
    /// The peer has not read for too long (RFC 9687).
    SendHoldTimer,
    /// The peer has opened a new connection: it has restarted.
    PeerRestarted,
    Restart,
}

impl SessionEndReason {
    /// The peer kept another connection.
    pub(super) fn is_collision(&self) -> bool {
        let Self::Received(notification) = self else { return false };
        notification.reason() == Some(Reason::ConnectionCollision)
    }
}

impl fmt::Display for SessionEndReason {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::ConnectFailed => formatter.write_str("the peer can't be connected to"),
            Self::Closed => formatter.write_str("connection closed by the peer or the network"),
            Self::Sent(notification) => write!(formatter, "sent NOTIFICATION: {notification}"),
            Self::Received(notification) => {
                write!(formatter, "received NOTIFICATION: {notification}")
            }
            Self::SendHoldTimer => formatter.write_str("send hold timer expired"),
            Self::PeerRestarted => formatter.write_str("the peer has restarted"),
            Self::Restart => formatter.write_str("restart of this speaker"),
        }
    }
}
