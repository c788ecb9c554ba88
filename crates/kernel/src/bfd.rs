//! Sessions of bidirectional forwarding detection (BFD) in the kernel, which answers their peers
//! without the agent until a deadline.
//!
//! Tests: `tests/tests/peers/bfd.rs`.

use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData, MapError};
use lb_common::layout::{BfdHeard, BfdSession, map};

use super::announce::clock_of_deadlines;
use super::pins::Pins;
use super::plain::Plain;
use super::removal::ignore_missing;

/// When the kernel has answered a peer last, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    pub age: Duration,
    pub answers: u64,
}

/// The only writer of sessions.
pub struct BfdSessions {
    sessions: HashMap<MapData, u32, Plain<BfdSession>>,
    heard: HashMap<MapData, u32, Plain<BfdHeard>>,
}

impl BfdSessions {
    /// Removes what earlier agents have left beyond its deadline.
    pub fn open(pins: &Pins) -> Result<Self> {
        let sessions = pins.hash_map(map::BFD_SESSIONS)?;
        let mut opened = Self { sessions, heard: pins.hash_map(map::BFD_HEARD)? };
        let now = clock_of_deadlines()?;
        for (discriminator, session) in opened.all()? {
            if session.deadline <= now {
                opened.remove(discriminator)?;
            }
        }
        Ok(opened)
    }

    /// All sessions in the map, also those that an earlier agent has left.
    pub fn all(&self) -> Result<Vec<(u32, BfdSession)>> {
        let all: Vec<_> = self.sessions.iter().collect::<Result<_, _>>()?;
        Ok(all
            .into_iter()
            .map(|(discriminator, Plain(session))| (discriminator, session))
            .collect())
    }

    /// Answers the session's peer from now on, or continues to, for `hold`.
    pub fn set(&mut self, discriminator: u32, session: &BfdSession, hold: Duration) -> Result<()> {
        let write = |error: MapError| {
            anyhow::Error::from(error).context(format!("{} can't be written", map::BFD_SESSIONS))
        };
        if self.heard(discriminator)?.is_none() {
            self.heard.insert(discriminator, Plain(BfdHeard::default()), 0).map_err(write)?;
        }
        let hold = hold.as_nanos().try_into().unwrap_or(u64::MAX);
        let deadline = clock_of_deadlines()?.saturating_add(hold);
        let entry = Plain(BfdSession { deadline, ..*session });
        self.sessions.insert(discriminator, entry, 0).map_err(write)
    }

    /// Leaves the peer's packets to the agent's socket.
    pub fn remove(&mut self, discriminator: u32) -> Result<()> {
        ignore_missing(self.sessions.remove(&discriminator))
            .and_then(|()| ignore_missing(self.heard.remove(&discriminator)))
            .with_context(|| format!("{} can't be written", map::BFD_SESSIONS))
    }

    pub fn heard(&self, discriminator: u32) -> Result<Option<Heard>> {
        let found = match self.heard.get(&discriminator, 0) {
            Err(MapError::KeyNotFound) => return Ok(None),
            found => found.with_context(|| format!("{} can't be read", map::BFD_HEARD))?,
        };
        let Plain(BfdHeard { time, answers }) = found;
        let age = Duration::from_nanos(clock_of_deadlines()?.saturating_sub(time));
        Ok(Some(Heard { age, answers }))
    }
}
