//! What commands and metrics show of a session.

use std::time::Duration;

use super::{Dial, Phase, Session, Why};
use crate::wire::Open;
use crate::wire::received::Fault;

/// RFC 4271, section 8.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
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
pub struct Counters {
    /// How often the session was established.
    pub established: u64,
    pub messages_received: u64,
    pub updates_received: u64,
    /// Prefixes that the peer announced.
    pub prefixes_discarded: u64,
    pub malformed_updates: u64,
    pub last_fault: Option<Fault>,
    pub refreshes: u64,
}

#[derive(Clone, Debug)]
pub struct Status<'a> {
    pub state: State,
    /// Since when the session is established, or is not.
    pub since: Duration,
    /// What the peer said in its OPEN, while the session is established.
    pub peer: Option<&'a Open>,
    /// Prefixes that the peer has been sent.
    pub announced: usize,
    /// Nothing waits to be sent.
    pub complete: bool,
    pub counters: &'a Counters,
    pub last_failure: Option<&'a Why>,
}

impl Session {
    pub fn status(&self) -> Status<'_> {
        let established = self.channels.iter().find_map(|channel| match &channel.phase {
            Phase::Established(open) => Some(open),
            _ => None,
        });
        Status {
            state: self.state(),
            since: self.since,
            peer: established,
            announced: established.map_or(0, |_| self.outbox.sent()),
            complete: established.is_some() && self.outbox.is_finished(),
            counters: &self.counters,
            last_failure: self.last_failure.as_ref(),
        }
    }

    fn state(&self) -> State {
        let channels = self.channels.iter().map(|channel| match channel.phase {
            Phase::OpenSent | Phase::Parked { .. } => State::OpenSent,
            Phase::OpenConfirm(_) => State::OpenConfirm,
            Phase::Established(_) => State::Established,
        });
        let furthest = channels.max_by_key(|state| *state as u8);
        furthest.unwrap_or(match self.dial {
            _ if !self.running => State::Idle,
            Dial::Until(_) => State::Connect,
            _ => State::Active,
        })
    }
}
