//! A session with one peer (RFC 5880, section 6.8).
//!
//! Invariants:
//! - Pure: [`BfdStateMachine::handle`] takes the time and an input, and returns what to do.
//! - A session is up only if both sides mean the same session: the caller hands over only packets
//!   for which [`BfdStateMachine::expects`] is true.
//! - While the kernel answers the peer (reflects its packets), a packet that the kernel has
//!   answered counts as received ([`BfdInput::Heard`]).
//!
//! Tests: `session/tests.rs`, among them random loss between two sessions, and a peer whose packets
//! the kernel reflects.

mod settings;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::packet::{BfdState, ControlPacket, Diagnostic, PACKET_OCTETS, interval_to_micros};
use settings::PacketIntervals;

/// The shortest interval between packets while the session is not up (RFC 5880, section 6.8.3).
const SLOW_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdConfig {
    /// The path counts as broken for the peer if it misses this many packets in a row. At least 1.
    pub multiplier: u8,
    /// The interval between sent packets; longer if the peer wants fewer.
    pub transmit: Duration,
    /// The interval between received packets; longer if the peer sends fewer.
    pub receive: Duration,
    /// Send nothing before the peer's first packet.
    pub passive: bool,
}

impl Default for BfdConfig {
    fn default() -> Self {
        let interval = Duration::from_millis(100);
        Self { multiplier: 3, transmit: interval, receive: interval, passive: false }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum BfdInput<'a> {
    /// A valid packet of the peer, for this session.
    Packet(&'a ControlPacket),
    /// The kernel has answered packets as [`BfdEffect::Reflect`] asks, the last one at this time.
    Heard(Duration),
    /// The time of [`BfdStateMachine::deadline`] has come. Packets that have arrived must be handed over
    /// before.
    Tick,
    /// Ends the session deliberately; its last packet says so to the peer.
    AdminDown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BfdEffect {
    Send(ControlPacket),
    Changed(StateChange),
    /// Make the kernel answer such packets from now on. The session itself answers only those that
    /// the kernel does not see, and sends nothing else meanwhile.
    Reflect(Reflection),
    /// Make the kernel stop answering.
    StopReflecting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateChange {
    pub from: BfdState,
    pub to: BfdState,
    pub diagnostic: Diagnostic,
    /// The state that the peer reported last.
    pub peer: BfdState,
}

impl StateChange {
    /// Whether the path is broken. It is not if one of the two sides has ended the session
    /// deliberately (RFC 5882, section 4.2).
    pub fn is_fault(&self) -> bool {
        self.from == BfdState::Up && self.to == BfdState::Down && self.peer != BfdState::AdminDown
    }
}

/// What the kernel needs to answer the peer, and what a new process needs to continue the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflection {
    /// The peer's packet. If its poll bit is set in addition, the answer's final bit is set.
    pub expected: [u8; PACKET_OCTETS],
    pub answer: [u8; PACKET_OCTETS],
}

impl Reflection {
    /// Tells the peer that a session which is not adopted has ended by decision, as
    /// [`BfdInput::AdminDown`] does.
    pub fn last_packet(&self) -> Option<ControlPacket> {
        let answer = ControlPacket::decode(&self.answer).ok()?;
        Some(ControlPacket {
            state: BfdState::AdminDown,
            diagnostic: Diagnostic::ADMINISTRATIVELY_DOWN,
            desired_min_tx: answer.desired_min_tx.max(interval_to_micros(SLOW_INTERVAL)),
            ..answer
        })
    }
}

/// The contents of the peer's last packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerFields {
    pub state: BfdState,
    pub discriminator: u32,
    pub multiplier: u8,
    /// Intervals in microseconds.
    pub min_tx: u32,
    pub min_rx: u32,
    pub demand: bool,
    pub diagnostic: Diagnostic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BfdCounters {
    /// How often the session came up.
    pub ups: u64,
    pub downs: u64,
    pub sent: u64,
    pub received: u64,
}

#[derive(Debug)]
pub struct BfdStateMachine {
    config: BfdConfig,
    /// Other settings, which wait until the peer's confirmations of earlier ones have come.
    wanted: Option<BfdConfig>,
    discriminator: u32,
    random: u64,
    state: BfdState,
    diagnostic: Diagnostic,
    since: Duration,
    remote: PeerFields,
    /// The transmit interval that sent packets name, in microseconds.
    desired_min_tx: u32,
    /// The peer has not yet confirmed that interval, or [`BfdStateMachine::configure`].
    polling: bool,
    /// The peer has sent a packet that confirms nothing since the last poll, so none of its
    /// confirmations is on the way (RFC 5880, section 6.8.3).
    settled: bool,
    /// What the peer goes by until it has confirmed new settings; 0: there are none.
    before: PacketIntervals,
    reflection: Option<Reflection>,
    heard: Option<Duration>,
    send_at: Duration,
    counters: BfdCounters,
    effects: Vec<BfdEffect>,
}

impl BfdStateMachine {
    /// The discriminator is this session's number: not 0, unique on this node, and hard to guess.
    pub fn new(config: BfdConfig, discriminator: u32, seed: u64, now: Duration) -> Self {
        let mut session = Self {
            config,
            wanted: None,
            discriminator,
            random: seed,
            state: BfdState::Down,
            diagnostic: Diagnostic::NONE,
            since: now,
            remote: PeerFields { min_rx: 1, ..PeerFields::default() },
            desired_min_tx: 0,
            polling: false,
            settled: true,
            before: PacketIntervals::default(),
            reflection: None,
            heard: None,
            send_at: now,
            counters: BfdCounters::default(),
            effects: Vec::new(),
        };
        session.desired_min_tx = session.transmit_interval();
        session
    }

    pub fn discriminator(&self) -> u32 {
        self.discriminator
    }

    /// Whether a packet may be for this session. While the session is up, the packet must name its
    /// discriminator, so that an attacker that does not see the packets cannot end the session. RFC
    /// 5880 also accepts a packet without a discriminator, from a peer that has restarted. Here,
    /// such a peer is noticed when the detection time has passed.
    pub fn expects(&self, packet: &ControlPacket) -> bool {
        packet.your_discriminator == self.discriminator
            || packet.your_discriminator == 0 && self.state != BfdState::Up
    }

    pub fn state(&self) -> BfdState {
        self.state
    }

    pub fn since(&self) -> Duration {
        self.since
    }

    pub fn diagnostic(&self) -> Diagnostic {
        self.diagnostic
    }

    pub fn remote(&self) -> &PeerFields {
        &self.remote
    }

    pub fn counters(&self) -> &BfdCounters {
        &self.counters
    }

    /// Whether the kernel answers the peer.
    pub fn is_reflected(&self) -> bool {
        self.reflection.is_some()
    }

    /// How long no packet may arrive before the path counts as broken.
    pub fn detection_time(&self) -> Duration {
        let interval = interval_to_micros(self.config.receive).max(self.before.receive);
        let interval = interval.max(self.remote.min_tx);
        Duration::from_micros(u64::from(interval)) * u32::from(self.remote.multiplier)
    }

    /// The longest time between two packets that are sent; `None`: the peer wants none.
    pub fn send_interval(&self) -> Option<Duration> {
        let wanted = self.remote.min_rx != 0;
        let interval = self.own_interval().max(self.remote.min_rx);
        wanted.then(|| Duration::from_micros(interval.into()))
    }

    /// In microseconds, as far as the peer leaves it to this side.
    fn own_interval(&self) -> u32 {
        // The peer expects packets at the old interval until it has confirmed a longer one.
        match self.before.transmit {
            0 => self.desired_min_tx,
            before => before.min(self.desired_min_tx),
        }
    }

    /// The kernel cannot answer the peer: the session sends the packets itself.
    pub fn reflect_no_longer(&mut self) {
        self.reflection = None;
    }

    /// `now` never decreases.
    pub fn handle(&mut self, now: Duration, input: BfdInput) -> Vec<BfdEffect> {
        match input {
            BfdInput::Packet(packet) => self.receive(now, packet),
            BfdInput::Heard(at) => self.heard = self.heard.max(Some(at.min(now))),
            BfdInput::Tick => self.expire(now),
            BfdInput::AdminDown => self.disable(now),
        }
        std::mem::take(&mut self.effects)
    }

    /// When [`BfdInput::Tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        let detection = self.heard.map(|heard| heard + self.detection_time());
        let send = self.sends().then_some(self.send_at);
        detection.into_iter().chain(send).min()
    }

    /// Whether the session itself sends periodic packets.
    fn sends(&self) -> bool {
        let waits = self.config.passive && self.remote.discriminator == 0;
        let demanded =
            self.remote.demand && self.state == BfdState::Up && self.remote.state == BfdState::Up;
        !waits
            && self.reflection.is_none()
            && self.send_interval().is_some()
            && (!demanded || self.polling)
    }

    fn receive(&mut self, now: Duration, packet: &ControlPacket) {
        if self.state == BfdState::AdminDown {
            return;
        }
        self.counters.received += 1;
        self.heard = Some(now);
        self.remember(packet);
        if packet.is_final {
            self.confirm();
        } else if !self.polling {
            self.settled = true;
        }
        match (self.state, packet.state) {
            (BfdState::Down, BfdState::Down) => self.change(now, BfdState::Init, Diagnostic::NONE),
            (BfdState::Down, BfdState::Init) | (BfdState::Init, BfdState::Init | BfdState::Up) => {
                self.change(now, BfdState::Up, Diagnostic::NONE);
            }
            (BfdState::Init, BfdState::AdminDown)
            | (BfdState::Up, BfdState::AdminDown | BfdState::Down) => {
                self.change(now, BfdState::Down, Diagnostic::NEIGHBOUR_SIGNALLED_DOWN);
            }
            _ => (),
        }
        self.apply_wanted(now);
        self.agree_on_interval();
        if packet.poll {
            // A packet must not be final and a poll at the same time (RFC 5880, section 6.5).
            let answer = ControlPacket { poll: false, is_final: true, ..self.packet() };
            self.send(answer);
        }
        // The peer now accepts packets at a higher rate, and expects them.
        if self.send_interval().is_some_and(|interval| self.send_at > now + interval) {
            self.send_at = now + self.jittered_interval();
        }
        self.reflect(packet);
    }

    fn set_polling(&mut self, polling: bool) {
        self.polling = polling;
        self.settled &= !polling;
    }

    /// The peer knows the intervals, or has to be told all of them anyway.
    fn confirm(&mut self) {
        self.polling = false;
        self.before = PacketIntervals::default();
    }

    fn remember(&mut self, packet: &ControlPacket) {
        self.remote = PeerFields {
            state: packet.state,
            discriminator: packet.my_discriminator,
            multiplier: packet.multiplier,
            min_tx: packet.desired_min_tx,
            min_rx: packet.required_min_rx,
            demand: packet.demand,
            diagnostic: packet.diagnostic,
        };
    }

    /// Announces a changed transmit interval. If the session is up, its packets poll until the peer
    /// has confirmed the interval.
    fn agree_on_interval(&mut self) {
        let interval = self.transmit_interval();
        if interval != self.desired_min_tx {
            self.desired_min_tx = interval;
            self.set_polling(self.state == BfdState::Up);
        }
    }

    /// At most as fast as the peer sends, because the kernel sends one packet for each of the peer's.
    fn transmit_interval(&self) -> u32 {
        let configured = interval_to_micros(self.config.transmit);
        if self.state != BfdState::Up {
            return configured.max(interval_to_micros(SLOW_INTERVAL));
        }
        if self.remote.state != BfdState::Up {
            // The peer names a long interval only because it is not up yet.
            return configured;
        }
        let of_peer = interval_to_micros(self.config.receive).max(self.remote.min_tx);
        if of_peer <= configured.max(self.remote.min_rx) { configured } else { of_peer }
    }

    /// Leaves the answers to the kernel once nothing is left to negotiate, so that each packet of
    /// the peer equals the last one. A packet that arrives here nevertheless is answered here.
    fn reflect(&mut self, packet: &ControlPacket) {
        let steady = self.state == BfdState::Up && packet.state == BfdState::Up && !self.polling;
        // A poll with new contents is followed by packets with the same contents that do not poll.
        let reflection = if steady && !packet.is_final && !packet.poll && !packet.demand {
            self.reflection_of(packet)
        } else {
            None
        };
        if reflection == self.reflection {
            if reflection.is_some() {
                // The kernel has not seen it: no program may be attached where it arrived.
                self.send(self.packet());
            }
            return;
        }
        match reflection {
            Some(reflection) => self.effects.push(BfdEffect::Reflect(reflection)),
            None => self.effects.push(BfdEffect::StopReflecting),
        }
        self.reflection = reflection;
    }

    /// `None` if the peer wants no packets, or if packets name an interval that is outdated.
    fn reflection_of(&self, packet: &ControlPacket) -> Option<Reflection> {
        let sufficient = self.remote.min_rx != 0 && self.transmit_interval() == self.desired_min_tx;
        let expected = ControlPacket { poll: false, is_final: false, ..*packet }.encode();
        let answer = ControlPacket { poll: false, is_final: false, ..self.packet() }.encode();
        sufficient.then_some(Reflection { expected, answer })
    }

    fn expire(&mut self, now: Duration) {
        if self.heard.is_some_and(|heard| heard + self.detection_time() <= now) {
            self.heard = None;
            self.remote = PeerFields { min_rx: 1, ..PeerFields::default() };
            if self.state >= BfdState::Init {
                self.change(now, BfdState::Down, Diagnostic::DETECTION_TIME_EXPIRED);
                self.agree_on_interval();
            }
        }
        if self.sends() && self.send_at <= now {
            self.send(self.packet());
            self.send_at = now + self.jittered_interval();
        }
    }

    fn disable(&mut self, now: Duration) {
        self.change(now, BfdState::AdminDown, Diagnostic::ADMINISTRATIVELY_DOWN);
        self.agree_on_interval();
        self.heard = None;
        if self.remote.discriminator != 0 {
            self.send(self.packet());
        }
    }

    fn change(&mut self, now: Duration, to: BfdState, diagnostic: Diagnostic) {
        let from = std::mem::replace(&mut self.state, to);
        if from == to {
            return;
        }
        self.diagnostic = diagnostic;
        self.since = now;
        // The peer is notified at once.
        self.send_at = now;
        self.counters.ups += u64::from(to == BfdState::Up);
        self.counters.downs += u64::from(from == BfdState::Up);
        if to != BfdState::Up {
            self.confirm();
            self.settled = true;
            self.apply_wanted(now);
        }
        if to != BfdState::Up && self.reflection.take().is_some() {
            self.effects.push(BfdEffect::StopReflecting);
        }
        let peer = self.remote.state;
        self.effects.push(BfdEffect::Changed(StateChange { from, to, diagnostic, peer }));
    }

    fn send(&mut self, packet: ControlPacket) {
        self.counters.sent += 1;
        self.effects.push(BfdEffect::Send(packet));
    }

    fn packet(&self) -> ControlPacket {
        ControlPacket {
            diagnostic: self.diagnostic,
            state: self.state,
            poll: self.polling,
            is_final: false,
            control_plane_independent: true,
            demand: false,
            multiplier: self.config.multiplier,
            my_discriminator: self.discriminator,
            your_discriminator: self.remote.discriminator,
            desired_min_tx: self.desired_min_tx,
            required_min_rx: interval_to_micros(self.config.receive),
            // No echo packets are wanted.
            required_min_echo_rx: 0,
        }
    }

    /// The send interval less a random part: up to 25 %, and at least 10 % if the multiplier is 1
    /// (RFC 5880, section 6.8.7).
    fn jittered_interval(&mut self) -> Duration {
        let interval = self.send_interval().unwrap_or(SLOW_INTERVAL);
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let part = u32::try_from(mixed >> 54).unwrap_or(0);
        let (least, most) = if self.config.multiplier == 1 { (10, 25) } else { (0, 25) };
        let percent = least * 1024 + (most - least) * part;
        interval - interval / 100 * percent / 1024
    }
}
