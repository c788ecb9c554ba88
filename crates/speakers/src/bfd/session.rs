//! One session, its sending socket, and its entry in the kernel.

use std::time::Duration;

use lb_bfd::packet::PACKET_OCTETS;
use lb_bfd::session::{BfdEffect, BfdInput, Reflection, StateChange};
use lb_bfd::{BfdState, BfdStateMachine, ControlPacket};
use lb_common::header::Bfd;
use lb_common::layout::BfdSession;
use lb_kernel::{BfdSessions, Heard};

use super::config::{HopLimit, WantedSession};
use super::io::{PacketSender, ReceivedPacket};

/// How long the kernel answers after the agent has ended: as long as routers keep the routes of a
/// node whose agent restarts.
const KERNEL_HOLD_TIME: Duration = Duration::from_secs(120);
/// How often that is prolonged.
const KERNEL_RENEWAL_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) struct MonitoredPath {
    pub wanted: WantedSession,
    pub session: BfdStateMachine,
    sender: Option<PacketSender>,
    /// What the kernel answers, and when that is to be prolonged.
    reflected: Option<(BfdSession, Duration)>,
    changes: Vec<StateChange>,
    /// Why the session can't work.
    pub problem: Option<String>,
}

impl MonitoredPath {
    pub fn new(
        name: &str,
        wanted: WantedSession,
        mut kernel: Option<&mut BfdSessions>,
        now: Duration,
    ) -> Self {
        let random = getrandom::u64().unwrap_or_default();
        let left = kernel.as_deref_mut().and_then(|kernel| adopt(&wanted, kernel, random, now));
        let (session, effects, entry) = match left {
            Some((session, effects, entry)) => {
                tracing::info!(peer = name, "bfd session adopted");
                (session, effects, Some(entry))
            }
            None => {
                // Never 0.
                let discriminator = (random >> 32) as u32 | 1;
                (BfdStateMachine::new(wanted.config, discriminator, random, now), Vec::new(), None)
            }
        };
        let port = entry.map(|entry| entry.source_port);
        let (sender, problem) = match PacketSender::open(&wanted.path, port, random) {
            Ok(sender) => (Some(sender), None),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(peer = name, error, "bfd session not possible");
                (None, Some(error))
            }
        };
        let reflected = entry.map(|entry| (entry, now));
        let mut running = Self { wanted, session, sender, reflected, changes: Vec::new(), problem };
        running.perform_effects(now, effects, kernel);
        running
    }

    pub fn next_timeout(&self) -> Option<Duration> {
        let renewal = self.reflected.map(|(_, renew_at)| renew_at);
        self.session.deadline().into_iter().chain(renewal).min()
    }

    pub fn take_changes(&mut self) -> impl Iterator<Item = StateChange> {
        std::mem::take(&mut self.changes).into_iter()
    }

    pub fn is_reflected(&self) -> bool {
        self.reflected.is_some()
    }

    /// Whether a packet belongs to this session (RFC 5880, section 6.8.6; RFC 5881, section 5).
    pub fn is_for(&self, arrived: &ReceivedPacket, packet: &ControlPacket) -> bool {
        let path = &self.wanted.path;
        self.session.expects(packet)
            && arrived.from.ip() == path.peer
            && arrived.port == path.hops.port()
            && arrived.hop_limit >= path.hops.min_hop_limit()
            && (path.hops != HopLimit::One || path.device == 0 || arrived.device == path.device)
    }

    pub(crate) fn receive_packet(
        &mut self,
        now: Duration,
        packet: &ControlPacket,
        kernel: Option<&mut BfdSessions>,
    ) {
        let effects = self.session.handle(now, BfdInput::Packet(packet));
        self.perform_effects(now, effects, kernel);
    }

    pub fn expire_timers(&mut self, now: Duration, mut kernel: Option<&mut BfdSessions>) {
        if self.session.deadline().is_some_and(|deadline| deadline <= now) {
            // The agent may be late. The kernel may have heard the peer meanwhile, so its record
            // is read before the session concludes that the peer is silent.
            self.read_kernel_record(now, kernel.as_deref());
            let effects = self.session.handle(now, BfdInput::Tick);
            self.perform_effects(now, effects, kernel.as_deref_mut());
        }
        let due = self.reflected.filter(|(_, renew_at)| *renew_at <= now);
        if let (Some((entry, _)), Some(kernel)) = (due, kernel) {
            self.keep(now, entry, kernel);
        }
    }

    fn read_kernel_record(&mut self, now: Duration, kernel: Option<&BfdSessions>) {
        if let Some(kernel) = kernel.filter(|_| self.reflected.is_some())
            && let Ok(Some(heard)) = kernel.heard(self.session.discriminator())
            && heard.answers > 0
        {
            let effects = self.session.handle(now, BfdInput::Heard(now.saturating_sub(heard.age)));
            debug_assert!(effects.is_empty(), "to have heard the peer changes nothing");
        }
    }

    fn perform_effects(
        &mut self,
        now: Duration,
        effects: Vec<BfdEffect>,
        mut kernel: Option<&mut BfdSessions>,
    ) {
        for effect in effects {
            match (effect, kernel.as_deref_mut()) {
                (BfdEffect::Send(packet), _) => {
                    if let Some(sender) = &self.sender {
                        sender.send(&packet.encode());
                    }
                }
                (BfdEffect::Changed(change), _) => self.changes.push(change),
                (BfdEffect::Reflect(reflection), Some(kernel)) => {
                    if let Some(entry) = self.entry(&reflection) {
                        self.keep(now, entry, kernel);
                    }
                }
                (BfdEffect::StopReflecting, Some(kernel)) => {
                    self.reflected = None;
                    if let Err(error) = kernel.remove(self.session.discriminator()) {
                        tracing::warn!(
                            error = format!("{error:#}"),
                            "bfd session left in the kernel"
                        );
                    }
                }
                (BfdEffect::Reflect(_), None) => self.session.reflect_no_longer(),
                (BfdEffect::StopReflecting, None) => {}
            }
        }
    }

    fn keep(&mut self, now: Duration, entry: BfdSession, kernel: &mut BfdSessions) {
        match kernel.set(self.session.discriminator(), &entry, KERNEL_HOLD_TIME) {
            Ok(()) => self.reflected = Some((entry, now + KERNEL_RENEWAL_INTERVAL)),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "bfd session not in the kernel");
                self.session.reflect_no_longer();
                self.reflected = None;
            }
        }
    }

    fn entry(&self, reflection: &Reflection) -> Option<BfdSession> {
        let path = &self.wanted.path;
        Some(BfdSession {
            deadline: 0,
            peer: path.peer.into(),
            local: path.local.into(),
            expected: header(&reflection.expected),
            answer: header(&reflection.answer),
            device: path.only_device(),
            source_port: self.sender.as_ref()?.port,
            destination_port: path.hops.port(),
            min_hop_limit: path.hops.min_hop_limit(),
            reserved: [0; 7],
        })
    }

    /// Changes the settings of a session whose path stays the same.
    pub fn configure(
        &mut self,
        wanted: &WantedSession,
        now: Duration,
        kernel: Option<&mut BfdSessions>,
    ) {
        self.wanted = wanted.clone();
        // Soon the kernel's record is gone.
        self.read_kernel_record(now, kernel.as_deref());
        let effects = self.session.configure(wanted.config, now);
        self.perform_effects(now, effects, kernel);
    }

    /// Ends the session for good.
    pub fn end(&mut self, now: Duration, kernel: Option<&mut BfdSessions>) {
        if self.session.state() != BfdState::AdminDown {
            let effects = self.session.handle(now, BfdInput::AdminDown);
            self.perform_effects(now, effects, kernel);
        }
    }
}

/// The session of this path that an earlier agent has left. If the peer has ended it, or its packets
/// are accepted otherwise now, the kernel no longer answers for it: the peer would hear two sessions.
/// The session ends with a packet that says so, as the peer would take any other end for a broken path.
fn adopt(
    wanted: &WantedSession,
    kernel: &mut BfdSessions,
    random: u64,
    now: Duration,
) -> Option<(BfdStateMachine, Vec<BfdEffect>, BfdSession)> {
    let path = &wanted.path;
    let mut adopted = None;
    for (discriminator, entry) in
        kernel.all().ok()?.into_iter().filter(|(_, it)| path.has_ends_of(it))
    {
        let reflection =
            Reflection { expected: octets(&entry.expected), answer: octets(&entry.answer) };
        let heard = kernel.heard(discriminator).ok().flatten();
        if let Some(Heard { age, .. }) = heard
            && adopted.is_none()
            && path.takes_packets_of(&entry)
        {
            let session = BfdStateMachine::adopt(wanted.config, &reflection, age, random, now);
            adopted = session
                .filter(|(session, _)| session.discriminator() == discriminator)
                .map(|(session, effects)| (session, effects, entry));
            if adopted.is_some() {
                continue;
            }
        }
        if let Some(last) = reflection.last_packet()
            && let Ok(sender) = PacketSender::open(path, Some(entry.source_port), random)
        {
            sender.send(&last.encode());
        }
        if let Err(error) = kernel.remove(discriminator) {
            tracing::warn!(error = format!("{error:#}"), "bfd session left in the kernel");
        }
    }
    adopted
}

fn header(octets: &[u8; PACKET_OCTETS]) -> Bfd {
    let word = |at: usize| [octets[at], octets[at + 1], octets[at + 2], octets[at + 3]];
    Bfd {
        version_and_diagnostic: octets[0],
        state_and_flags: octets[1],
        multiplier: octets[2],
        length: octets[3],
        fields: [word(4), word(8), word(12), word(16), word(20)],
    }
}

fn octets(header: &Bfd) -> [u8; PACKET_OCTETS] {
    let mut octets = [0; PACKET_OCTETS];
    for (part, word) in octets.chunks_exact_mut(4).zip(header.words()) {
        part.copy_from_slice(&word);
    }
    octets
}
