//! `millrace drops`: packets for which a reason was counted, as the programs report them.
//!
//! They report only while there is a [`Listener`]: a deadline in a map, which the command extends
//! every second. If the command ends for any reason, reports stop within seconds. There is one
//! listener at a time, because each packet is reported once.

mod event;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use aya::maps::{Map, MapData, PerCpuArray, RingBuf};
use lb_common::layout::{Listener, PacketEvent, Reason, Ticks, map};
use lb_kernel::{Mapped, read_clock};
use lb_rules::reasons::{ReasonFate, explain_reason};
use tokio::io::unix::AsyncFd;

pub use event::DropReport;

/// Seconds until the deadline.
const LEASE: u32 = 3;
/// How often the deadline is extended.
pub const RENEWAL: Duration = Duration::from_secs(1);

/// The reasons for which packets do not simply pass.
pub fn usual_reasons() -> impl Iterator<Item = Reason> {
    Reason::ALL.into_iter().filter(|reason| explain_reason(*reason).fate != ReasonFate::Passed)
}

/// The listener; reports end when it is dropped.
pub struct Listening {
    listener: Mapped,
    token: u32,
    word: u64,
    events: AsyncFd<RingBuf<MapData>>,
    unreported: PerCpuArray<MapData, u64>,
    unreported_before: u64,
}

impl Listening {
    /// Starts reports of packets for which these reasons are counted. Needs a runtime.
    pub fn begin(pin_path: &Path, reasons: impl Iterator<Item = Reason>) -> Result<Self> {
        let open = |name: &str| {
            let path = pin_path.join(name);
            MapData::from_pin(&path).with_context(|| {
                format!(
                    "{} can't be opened; is a data plane of this version pinned there?",
                    path.display()
                )
            })
        };
        let listener = Mapped::new(&open(map::LISTENER)?, size_of::<Listener>())?;
        let mut events = RingBuf::try_from(Map::RingBuf(open(map::EVENTS)?))?;
        let unreported = PerCpuArray::try_from(Map::PerCpuArray(open(map::UNREPORTED)?))?;
        let mut token = [0; 4];
        getrandom::fill(&mut token)?;
        let token = u32::from_ne_bytes(token) | 1;

        let found: Listener = listener.load(0);
        let now = read_clock()?;
        ensure!(
            found.token == 0 || !found.is_there(now),
            "another `millrace drops` is running, and each event is reported only once.\n\
             If it was killed, try again in {LEASE} seconds"
        );
        let mut listening = Self {
            word: word(&found),
            listener,
            token,
            events: {
                // Events of an earlier listener are outdated.
                while events.next().is_some() {}
                // SAFETY: the `AsyncFd` owns the map, so its descriptor stays open until both are
                // dropped.
                unsafe { AsyncFd::register(events) }
                    .context("the ring buffer can't be waited for")?
            },
            unreported,
            unreported_before: 0,
        };
        listening.unreported_before = listening.all_unreported()?;
        listening.renew()?;
        let bits = reasons.fold(0, |bits, reason| bits | 1 << reason as u32);
        listening.reasons().store(bits, Ordering::Release);
        Ok(listening)
    }

    /// Extends the deadline.
    pub fn renew(&mut self) -> Result<()> {
        let until = Ticks(read_clock()?.0.wrapping_add(Ticks::in_seconds(LEASE)));
        let next = word(&Listener { until, token: self.token, ..Listener::default() });
        self.replace(next)
    }

    fn replace(&mut self, next: u64) -> Result<()> {
        let word = self.listener.word(0);
        if word.compare_exchange(self.word, next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            bail!("another `millrace drops` has taken over");
        }
        self.word = next;
        Ok(())
    }

    fn reasons(&self) -> &std::sync::atomic::AtomicU64 {
        self.listener.long(0, 1)
    }

    /// Waits for events.
    pub async fn next(&mut self) -> Result<Vec<PacketEvent>> {
        let mut ready = self.events.readable_mut().await?;
        let mut events = Vec::new();
        while let Some(item) = ready.get_inner_mut().next() {
            events.extend(event::parse_packet_event(&item));
        }
        ready.clear_ready();
        Ok(events)
    }

    /// Stops reports; returns the events until now.
    pub fn end(&mut self) -> Vec<PacketEvent> {
        self.give_up();
        let mut events = Vec::new();
        while let Some(item) = self.events.get_mut().next() {
            events.extend(event::parse_packet_event(&item));
        }
        events
    }

    /// Clears the reasons before the listener: afterwards they may belong to the next listener.
    fn give_up(&mut self) {
        let is_ours = self.listener.word(0).load(Ordering::Acquire) == self.word;
        if self.word != 0 && is_ours {
            self.reasons().store(0, Ordering::Release);
            let _ = self.replace(0);
        }
    }

    /// Packets that were not reported to this listener, because too many arrived at once.
    pub fn unreported(&self) -> Result<u64> {
        Ok(self.all_unreported()? - self.unreported_before)
    }

    fn all_unreported(&self) -> Result<u64> {
        Ok(self.unreported.get(&0, 0)?.iter().sum())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Deadline and token as one word, as they are in the map.
fn word(listener: &Listener) -> u64 {
    let [a, b, c, d] = listener.until.0.to_ne_bytes();
    let [e, f, g, h] = listener.token.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}
