//! What commands and metrics show of a session.

use std::time::Duration;

use super::{BgpSession, ConnectionPhase, DialState, SessionEndReason};
use crate::wire::OpenMessage;
use crate::wire::received::UpdateFault;

/// RFC 4271, section 8.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BgpSessionState {
    /// Stopped.
    Idle,
    Connect,
    /// Waits: for the next attempt to connect, or for the peer.
    Active,
    OpenSent,
    OpenConfirm,
    Established,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BgpCounters {
    /// How often the session was established.
    pub established: u64,
    pub messages_received: u64,
    pub updates_received: u64,
    /// Prefixes that the peer announced.
    pub prefixes_discarded: u64,
    pub malformed_updates: u64,
    pub last_fault: Option<UpdateFault>,
    pub refreshes: u64,
}

#[derive(Clone, Debug)]
pub struct BgpSessionStatus<'a> {
    pub state: BgpSessionState,
    /// Since when the session is established, or is not.
    pub since: Duration,
    /// What the peer said in its OPEN, while the session is established.
    pub peer: Option<&'a OpenMessage>,
    /// Prefixes that the peer has been sent.
    pub announced: usize,
    /// Nothing waits to be sent.
    pub complete: bool,
    pub counters: &'a BgpCounters,
    pub last_failure: Option<&'a SessionEndReason>,
}

impl BgpSession {
    pub fn status(&self) -> BgpSessionStatus<'_> {
        let established = self.channels.iter().find_map(|channel| match &channel.phase {
            ConnectionPhase::Established(open) => Some(open),
            _ => None,
        });
        BgpSessionStatus {
            state: self.state(),
            since: self.since,
            peer: established,
            announced: established.map_or(0, |_| self.outbox.count_sent_prefixes()),
            complete: established.is_some() && self.outbox.is_finished(),
            counters: &self.counters,
            last_failure: self.last_failure.as_ref(),
        }
    }

    fn state(&self) -> BgpSessionState {
        let channels = self.channels.iter().map(|channel| match channel.phase {
            ConnectionPhase::OpenSent | ConnectionPhase::Parked { .. } => BgpSessionState::OpenSent,
            ConnectionPhase::OpenConfirm(_) => BgpSessionState::OpenConfirm,
            ConnectionPhase::Established(_) => BgpSessionState::Established,
        });
        let furthest = channels.max_by_key(|state| *state as u8);
        furthest.unwrap_or(match self.dial {
            _ if !self.running => BgpSessionState::Idle,
            DialState::Until(_) => BgpSessionState::Connect,
            _ => BgpSessionState::Active,
        })
    }
}
