//! The election on one interface: its state, and what each input does to it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use lb_common::hash::mix;
use lb_limits::RateLimiter;
use serde::{Deserialize, Serialize};

use super::acknowledgement::{MessageTimes, OwnProcess};
use super::address_state::{AddressState, AdoptedAddress, HeldAddress};
use super::choice::HolderChoice;
use super::event::{ElectionEvent, LinkEffect, LinkInput};
use super::identity::{
    CandidateRank, LinkAddress, ParticipantId, ParticipantIdentity, epoch_distance,
};
use super::pacing::{FramePacing, limit_frames};
use super::peers::Peers;
use super::reachability::ReachabilityProbes;
use super::seal::SealKeys;
use super::table::{MAX_ADDRESSES, OwnTable, RowContent};
use super::timing::{ElectionTiming, Time, YIELD_PERIOD};
use super::wire::{self, Acknowledgement, Heartbeat};

/// A period in which this participant takes no addresses, because it does not know yet which ones
/// the others hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListeningPeriod {
    pub since: Time,
    /// The period was long enough to hear all others, though perhaps not to get their whole tables.
    pub has_lasted: bool,
}

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElectionCounts {
    pub received: u64,
    /// Not authenticated, or malformed.
    pub refused: u64,
    pub sent: u64,
    pub taken: u64,
    pub planned: u64,
    pub conflicts: u64,
}

/// How long a machine with this participant's name is reported after its last message.
const SAME_NAME_REPORTED: Duration = Duration::from_secs(60);

fn is_recent(at: Time, now: Time) -> bool {
    now.saturating_sub(at) < SAME_NAME_REPORTED
}

/// This participant's view of a link.
pub struct LinkElection {
    pub(super) identity: ParticipantIdentity,
    pub(super) id: ParticipantId,
    pub(super) timing: ElectionTiming,
    pub(super) keys: SealKeys,
    pub(super) link_address: LinkAddress,
    pub(super) usable: bool,
    pub(super) unusable_since: Time,
    pub(super) wanted: Option<BTreeMap<IpAddr, CandidateRank>>,
    /// How many of the wanted addresses are more than a link can have.
    pub(super) beyond: usize,
    pub(super) most_addresses: usize,
    pub(super) leaving: Option<Time>,
    pub(super) left: bool,
    pub(super) addresses: BTreeMap<IpAddr, AddressState>,
    /// The greatest epoch that was seen for each address.
    pub(super) epochs: BTreeMap<IpAddr, u32>,
    /// When this participant last lost an address to another one.
    pub(super) lost: BTreeMap<IpAddr, Time>,
    pub(super) own: OwnTable,
    pub(super) peers: Peers,
    pub(super) reachability_probes: ReachabilityProbes,
    pub(super) listening: Option<ListeningPeriod>,
    /// Whether it has ever finished listening; before that it wants no address.
    pub(super) introduced: bool,
    /// Enough participants with lower ids take part: this one wants no address, and only listens.
    pub(super) surplus: bool,
    pub(super) choice: HolderChoice,
    /// The candidates may have changed since the choice.
    pub(super) outdated: bool,
    /// Since when the same participants are alive.
    pub(super) stable_since: Time,
    /// Since when a participant is heard that was not: it may have held what this one holds.
    pub(super) returned_at: Option<Time>,
    /// Something has changed that needs a decision.
    pub(super) dirty: bool,
    /// When the next decision is due by itself.
    pub(super) decide_at: Time,
    pub(super) last_input: Time,
    /// When the silence of other participants was last checked, or their timeouts restarted.
    pub(super) liveness_checked_at: Time,
    pub(super) sequence: u64,
    /// When the last messages were sent.
    pub(super) times: MessageTimes,
    pub(super) heartbeat_at: Time,
    /// Until when it still sends heartbeats although it has no candidacies.
    pub(super) quiet_after: Time,
    /// The version of the table up to which all changes were sent.
    pub(super) published: u64,
    pub(super) allowance: RateLimiter<Time>,
    pub(super) moves: (Time, u32),
    pub(super) effects: Vec<LinkEffect>,
    pub(super) counts: ElectionCounts,
    /// Another machine that takes part under this participant's name, and when it was heard last.
    pub(super) same_name: Option<(LinkAddress, Time)>,
}

impl LinkElection {
    /// `adopted`: the addresses that the kernel answers for because an earlier process asked it to.
    pub fn new(
        identity: ParticipantIdentity,
        timing: ElectionTiming,
        keys: SealKeys,
        adopted: &[AdoptedAddress],
        now: Time,
    ) -> Self {
        let mut link = Self {
            id: identity.id(),
            identity,
            timing,
            keys,
            link_address: [0; 6],
            usable: false,
            unusable_since: now,
            wanted: None,
            beyond: 0,
            most_addresses: MAX_ADDRESSES,
            leaving: None,
            left: false,
            addresses: BTreeMap::new(),
            epochs: BTreeMap::new(),
            lost: BTreeMap::new(),
            own: OwnTable::default(),
            peers: Peers::default(),
            reachability_probes: ReachabilityProbes::default(),
            listening: None,
            introduced: false,
            surplus: false,
            choice: HolderChoice::default(),
            outdated: true,
            stable_since: now,
            returned_at: None,
            dirty: true,
            decide_at: now,
            last_input: now,
            liveness_checked_at: now,
            sequence: 0,
            times: MessageTimes::default(),
            heartbeat_at: now,
            quiet_after: now,
            published: 0,
            allowance: limit_frames(),
            moves: (now, 0),
            effects: Vec::new(),
            counts: ElectionCounts::default(),
            same_name: None,
        };
        for held in adopted {
            let holding = link.start_holding(held.epoch, now);
            link.epochs.insert(held.address, held.epoch);
            link.addresses.insert(held.address, AddressState::Here(holding));
            link.effects.push(LinkEffect::Watch(held.address));
        }
        link.start_listening(now);
        link
    }

    /// Handles an input, and returns what the caller has to do.
    pub fn handle(&mut self, input: LinkInput<'_>, now: Time) -> Vec<LinkEffect> {
        self.notice_pause(now);
        match input {
            // Many datagrams and claims arrive together. They are only noted here; the next timer
            // decides for all of them.
            LinkInput::Received(octets) => self.receive_heartbeat(octets, now),
            LinkInput::Claim { address, by } => self.note_address_use(address, by, now),
            LinkInput::Timer => {
                self.liveness_checked_at = now;
                self.decide_until_stable(true, now);
                self.send_due_heartbeats(now);
            }
            LinkInput::Backlog => {
                self.note_backlog(now);
                self.send_due_heartbeats(now);
            }
            other => {
                self.handle_local_input(other, now);
                self.decide_until_stable(false, now);
                self.send_due_heartbeats(now);
                // Decisions for which all that arrived must have been read follow with the next
                // timer, which is due at once.
                self.dirty = true;
            }
        }
        std::mem::take(&mut self.effects)
    }

    /// Handles an input that comes from this machine rather than from the link.
    fn handle_local_input(&mut self, input: LinkInput<'_>, now: Time) {
        self.dirty = true;
        match input {
            LinkInput::Wanted(mut wanted) => {
                self.beyond = wanted.len().saturating_sub(self.most_addresses);
                // The last ones on all nodes.
                for _ in 0..self.beyond {
                    wanted.pop_last();
                }
                self.wanted = Some(wanted);
                self.outdated = true;
            }
            LinkInput::Interface { usable, link_address } => {
                self.set_interface(usable, link_address, now);
            }
            LinkInput::Failed(address) => self.note_kernel_refusal(address, now),
            LinkInput::Leave => {
                self.leaving.get_or_insert(now);
                self.outdated = true;
            }
            LinkInput::Keys(keys) => self.keys = keys,
            LinkInput::Received(_)
            | LinkInput::Claim { .. }
            | LinkInput::Timer
            | LinkInput::Backlog => {}
        }
    }

    /// When the next [`LinkInput::Timer`] is due.
    pub fn next_timer(&self) -> Time {
        if self.dirty { Time::ZERO } else { self.decide_at.min(self.heartbeat_at) }
    }

    pub fn holds_any(&self) -> bool {
        self.held_addresses().next().is_some()
    }

    pub fn counts(&self) -> ElectionCounts {
        self.counts
    }

    pub(super) fn start_listening(&mut self, now: Time) {
        self.listening = Some(ListeningPeriod { since: now, has_lasted: false });
        self.dirty = true;
    }

    /// Notices that the process did not run. There is a timer for each heartbeat, so a gap between
    /// inputs that is longer than the limit of silence is such a pause.
    fn notice_pause(&mut self, now: Time) {
        let paused = now.saturating_sub(self.last_input);
        self.last_input = now;
        if paused > self.timing.silence && self.usable {
            self.restart_timeouts(now.saturating_sub(paused), now);
            self.stable_since = now;
            self.start_listening(now);
            self.report(ElectionEvent::Paused(paused));
        }
    }

    fn set_interface(&mut self, usable: bool, link_address: LinkAddress, now: Time) {
        let before = (self.usable, self.link_address);
        self.usable = usable;
        self.link_address = link_address;
        match (before.0, usable) {
            (true, false) => self.unusable_since = now,
            // What the other participants did in the meantime is unknown.
            (false, true) if now.saturating_sub(self.unusable_since) > self.timing.interval => {
                self.restart_timeouts(self.unusable_since, now);
                self.start_listening(now);
            }
            (true, true) if before.1 != link_address => self.announce_again(now),
            _ => {}
        }
    }

    fn receive_heartbeat(&mut self, sealed: &[u8], now: Time) {
        if !self.usable {
            return;
        }
        self.counts.received += 1;
        let opened = if sealed.len() <= wire::MAX_HEARTBEAT_OCTETS {
            self.keys.open_sealed(sealed)
        } else {
            None
        };
        let Some(message) = opened.and_then(wire::parse_heartbeat) else {
            self.counts.refused += 1;
            return;
        };
        let id = ParticipantId::of_interface(&message.node, &message.interface);
        if id == self.id {
            self.notice_duplicate_name(&message, now);
            return;
        }
        let own = OwnProcess {
            id: self.id,
            incarnation: self.identity.incarnation,
            sequence: self.sequence,
            times: &self.times,
        };
        let change = self.peers.handle_heartbeat(&message, own, now, &self.timing);
        self.renew_forged_incarnation(&message, now);
        if change.members {
            self.stable_since = now;
            self.returned_at.get_or_insert(now);
            self.report(ElectionEvent::Joined(id));
        }
        if change.table {
            for row in &message.changes.rows {
                if let Some(epoch) = row.holds {
                    self.note_epoch(row.address, epoch);
                }
            }
        }
        self.outdated |= change.members || change.ranks;
        self.dirty |= change.members || change.table || change.connectivity;
    }

    /// The greatest epoch that was seen for an address; 0, the one before the first, if none was.
    pub(super) fn known_epoch(&self, address: IpAddr) -> u32 {
        self.epochs.get(&address).copied().unwrap_or_default()
    }

    /// Two machines of one name do not see each other as candidates, so that both announce. The link-layer address
    /// distinguishes another machine from an earlier process of this one.
    fn notice_duplicate_name(&mut self, message: &Heartbeat, now: Time) {
        let by = message.link_address;
        if message.incarnation == self.identity.incarnation || by == self.link_address {
            return;
        }
        let before = self.same_name.replace((by, now));
        let is_known = before.is_some_and(|(known, at)| known == by && is_recent(at, now));
        if !is_known {
            self.dirty = true;
            self.report(ElectionEvent::SameName { by });
        }
    }

    /// The machine that has this participant's name, if it was heard lately.
    pub(super) fn same_name(&self, now: Time) -> Option<LinkAddress> {
        self.same_name.filter(|(_, at)| is_recent(*at, now)).map(|(by, _)| by)
    }

    /// If a participant acknowledges a sequence number or a version that this process has not
    /// reached, another process sends messages under this participant's name. The acknowledging
    /// participant would then refuse genuine messages as old. So this process chooses a new
    /// incarnation, which the others accept only after a new exchange of acknowledgements.
    fn renew_forged_incarnation(&mut self, message: &Heartbeat, now: Time) {
        let ParticipantIdentity { incarnation, .. } = self.identity;
        let mut heard = message.heard.iter();
        let heard = heard.find(|heard| (heard.id, heard.incarnation) == (self.id, incarnation));
        let exceeds = |heard: &Acknowledgement| {
            heard.sequence > self.sequence || heard.version > self.own.current_version()
        };
        if heard.is_some_and(exceeds) {
            self.identity.incarnation = mix(incarnation ^ now.as_nanos() as u64);
            self.report(ElectionEvent::Namesake);
        }
    }

    /// Notes the epoch of an address that this participant wants or keeps a state for. Those of
    /// other addresses are ignored, so that a sender cannot fill the memory with them.
    fn note_epoch(&mut self, address: IpAddr, epoch: u32) {
        let matters = self.addresses.contains_key(&address)
            || self.wanted.as_ref().is_some_and(|wanted| wanted.contains_key(&address));
        if matters {
            let known = self.epochs.entry(address).or_insert(epoch);
            if epoch_distance(epoch, *known) > 0 {
                *known = epoch;
            }
        }
    }

    pub(super) fn start_holding(&self, epoch: u32, now: Time) -> HeldAddress {
        HeldAddress {
            epoch,
            since: now,
            yields_until: now,
            extend: now,
            pacing: FramePacing::start(now),
            rival: None,
            defended: None,
            leaving: None,
        }
    }

    /// Starts answering for an address.
    pub(super) fn take_address(
        &mut self,
        address: IpAddr,
        from: Option<ParticipantId>,
        planned: bool,
        now: Time,
    ) {
        let epoch = self.epochs.entry(address).or_default();
        *epoch = epoch.wrapping_add(1);
        let epoch = *epoch;
        let mut holding = self.start_holding(epoch, now);
        if from.is_none() {
            holding.yields_until = now + YIELD_PERIOD;
        }
        holding.extend = now + self.timing.extension_interval();
        let before = self.addresses.insert(address, AddressState::Here(holding));
        if !before.is_some_and(|before| before.is_watched()) {
            self.effects.push(LinkEffect::Watch(address));
        }
        self.effects.push(LinkEffect::Announce { address, epoch, hold: self.timing.hold });
        self.counts.taken += 1;
        self.counts.planned += u64::from(planned);
        self.report(ElectionEvent::Taken { address, epoch, from, planned });
    }

    /// Stops answering for an address.
    pub(super) fn release_address(&mut self, address: IpAddr, to: Option<ParticipantId>) {
        self.effects.push(LinkEffect::Withdraw(address));
        self.effects.push(LinkEffect::Unwatch(address));
        self.addresses.insert(address, AddressState::Elsewhere);
        self.report(ElectionEvent::Released { address, to });
    }

    fn announce_again(&mut self, now: Time) {
        for state in self.addresses.values_mut() {
            if let AddressState::Here(holding) = state {
                holding.pacing = FramePacing::start(now);
            }
        }
    }

    pub(super) fn report(&mut self, news: ElectionEvent) {
        self.effects.push(LinkEffect::Report(news));
    }

    /// This participant's rank as a candidate for an address, as its heartbeats state it.
    pub(super) fn own_rank(&self, address: IpAddr) -> CandidateRank {
        let state = self.addresses.get(&address);
        let refused = matches!(state, Some(AddressState::Blocked { by: None, .. }));
        // Addresses adopted from an earlier process are kept until it is known which are wanted.
        let keeps = state.and_then(AddressState::holding).is_some();
        let takes_part = !self.surplus && self.leaving.is_none();
        if !takes_part || refused || !(self.introduced || keeps) {
            return CandidateRank::None;
        }
        match &self.wanted {
            Some(wanted) => wanted.get(&address).copied().unwrap_or_default(),
            None if keeps => CandidateRank::Candidate,
            None => CandidateRank::None,
        }
    }

    pub(super) fn own_row(&self, address: IpAddr) -> RowContent {
        let state = self.addresses.get(&address);
        let holds = state.and_then(AddressState::holding).map(|holding| holding.epoch);
        RowContent { rank: self.own_rank(address), holds }
    }
}
