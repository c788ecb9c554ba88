//! Which addresses to take, keep and give up.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::choice::{Candidates, Chosen, choose};
use super::event::{Effect, Frame, News};
use super::hold::{Holding, Probed, Probing, Whereabouts};
use super::identity::{Id, Rank, ahead};
use super::link::Link;
use super::pacing::Pacing;
use super::peers::Peer;
use super::timing::{FRESH_GAP, HANDOVER, MOVES_PER_INTERVAL, PROBES, Time};

/// Another participant that says it holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claimant {
    id: Id,
    epoch: u32,
    silent: bool,
    /// It does not hear this participant.
    deaf: bool,
    /// It hears nobody, and whether clients can reach it is not known yet.
    doubtful: bool,
    rank: Rank,
}

impl Claimant {
    /// Of several, the one with the greatest holds the address.
    fn standing(&self, address: IpAddr, known: u32) -> (i32, (u64, Id)) {
        (ahead(self.epoch, known), self.id.weight(address))
    }
}

/// What others hold, in one pass over their tables.
#[derive(Debug, Default)]
struct Holders {
    claims: BTreeMap<IpAddr, Vec<Claimant>>,
    /// How many addresses each holds.
    loads: BTreeMap<Id, usize>,
    /// A silent participant holds addresses, and may come back.
    unsettled: bool,
}

impl Link {
    pub(super) fn decide(&mut self, now: Time) {
        self.decide_at = now + self.timing.settle;
        if !self.usable {
            self.give_up_without_a_link(now);
            return;
        }
        self.note_silence(now);
        if self.examine(now) {
            self.stable_since = now;
            self.outdated = true;
        }
        self.stop_listening(now);
        if self.outdated && self.listening.is_none() {
            self.outdated = false;
            self.choice = choose(&self.candidates());
        }
        let holders = self.holders(now);
        for address in self.relevant() {
            let claims = holders.claims.get(&address).map_or(&[][..], Vec::as_slice);
            match self.addresses.get(&address).copied().unwrap_or(Whereabouts::Elsewhere) {
                Whereabouts::Here(holding) => self.keep(address, holding, claims, now),
                state => self.obtain(address, state, claims, &holders, now),
            }
        }
        self.forget_irrelevant();
        self.announce_due(now);
        self.finish_leaving();
        if let Some(silence) = self.peers.next_silence(&self.timing) {
            self.due(silence);
        }
        let settled = self.stable_since + self.timing.settle;
        if settled > now {
            self.due(settled);
        }
    }

    pub(super) fn due(&mut self, at: Time) {
        self.decide_at = self.decide_at.min(at);
    }

    /// Others have taken over when an interface is down for longer than the limit of silence.
    fn give_up_without_a_link(&mut self, now: Time) {
        let limit = self.unusable_since + self.timing.silence;
        if now < limit {
            return self.due(limit);
        }
        let held: Vec<IpAddr> = self.held().map(|(address, _)| address).collect();
        held.into_iter().for_each(|address| self.release(address, None));
        self.addresses.clear();
        self.peers.forget_all();
        self.outdated = true;
        self.finish_leaving();
    }

    fn note_silence(&mut self, now: Time) {
        let before: Vec<Id> = self.peers.alive().map(|(id, _)| id).collect();
        if self.peers.age(now, &self.timing) {
            self.stable_since = now;
            self.outdated = true;
            for id in before {
                if self.peers.get(id).is_none_or(|peer| peer.silent) {
                    self.report(News::Silent(id));
                }
            }
        }
    }

    fn stop_listening(&mut self, now: Time) {
        let Some(listening) = self.listening else { return };
        let complete = self.peers.alive().all(|(_, peer)| peer.table.is_complete());
        let over = now >= listening.until && (complete || now >= listening.at_most);
        if over && self.wanted.is_some() {
            self.listening = None;
            self.introduced = true;
            self.outdated = true;
            self.dirty = true;
        } else if over {
            // Without knowing what is wanted, it keeps what nobody else has taken.
            self.due(now + self.timing.interval);
        } else {
            self.due(listening.until.max(now + self.timing.interval / 2));
        }
    }

    fn candidates(&self) -> Candidates {
        let mut candidates = Candidates::new();
        let wanted = self.wanted.iter().flatten();
        for (address, rank) in wanted.map(|(address, _)| (*address, self.rank(*address))) {
            if rank != Rank::None {
                candidates.entry(address).or_default().push((self.id, rank));
            }
        }
        for (id, peer) in self.peers.alive() {
            for (address, entry) in peer.table.rows().filter(|(_, e)| e.rank != Rank::None) {
                candidates.entry(address).or_default().push((id, entry.rank));
            }
        }
        candidates
    }

    fn holders(&self, now: Time) -> Holders {
        let mut holders = Holders::default();
        for (id, peer) in self.peers.iter() {
            let deaf = peer.hears_nobody || peer.is_deaf(now, &self.timing);
            let passed = self.exams.get(&id).and_then(|exam| exam.passed);
            let doubtful = peer.hears_nobody && passed.is_none();
            let silent = peer.silent || peer.mute;
            for (address, entry) in peer.table.rows() {
                let Some(epoch) = entry.holds else { continue };
                let rank = entry.rank;
                let claimant = Claimant { id, epoch, silent, deaf, doubtful, rank };
                holders.claims.entry(address).or_default().push(claimant);
                *holders.loads.entry(id).or_default() += 1;
                holders.unsettled |= silent;
            }
        }
        holders
    }

    /// Addresses that this participant wants or has something to do with.
    fn relevant(&self) -> Vec<IpAddr> {
        let wanted = self.wanted.iter().flatten().map(|(address, _)| *address);
        let mut relevant: Vec<IpAddr> = wanted.chain(self.addresses.keys().copied()).collect();
        relevant.sort_unstable();
        relevant.dedup();
        relevant
    }

    pub(super) fn held(&self) -> impl Iterator<Item = (IpAddr, &Holding)> {
        let held = self.addresses.iter();
        held.filter_map(|(address, state)| state.holding().map(|holding| (*address, holding)))
    }

    /// An address that this participant holds: does it stay?
    fn keep(&mut self, address: IpAddr, mut holding: Holding, claims: &[Claimant], now: Time) {
        let rival = claims.iter().filter(|claim| !claim.silent && !claim.doubtful);
        let standing = |claim: &Claimant| claim.standing(address, holding.epoch);
        // One that is deaf cannot know better, and to contradict it is in vain.
        let rival = rival.max_by_key(|claim| (claim.deaf, standing(claim)));
        if let Some(rival) = rival
            && (rival.deaf || standing(rival) > (0, self.id.weight(address)))
        {
            self.lost.insert(address, now);
            return self.release(address, Some(rival.id));
        }
        // Its frames have misled others, now or while it still answered.
        if holding.rival != rival.map(|rival| rival.id) {
            holding.rival = rival.map(|rival| rival.id);
            holding.pacing = Pacing::start(now);
        }
        if self.listening.is_none() && !self.may_keep(address, &mut holding, now) {
            return self.release(address, None);
        }
        let extends = self.listening.is_none() || self.knows_nothing(now);
        if extends && now >= holding.extend {
            holding.extend = now + self.timing.extend();
            let (epoch, hold) = (holding.epoch, self.timing.hold);
            self.effects.push(Effect::Announce { address, epoch, hold });
        }
        if extends {
            self.due(holding.extend);
        }
        self.addresses.insert(address, Whereabouts::Here(holding));
    }

    /// Whether it has listened, and only lacks the list of what it wants.
    fn knows_nothing(&self, now: Time) -> bool {
        self.wanted.is_none() && self.listening.is_some_and(|listening| now >= listening.until)
    }

    /// Whether it is a candidate, or was one until recently and waits for another.
    fn may_keep(&mut self, address: IpAddr, holding: &mut Holding, now: Time) -> bool {
        let is_wanted = self.wanted.as_ref().is_none_or(|wanted| wanted.contains_key(&address));
        if !is_wanted {
            return false;
        }
        if self.rank(address) != Rank::None {
            holding.leaving = None;
            return true;
        }
        let since = *holding.leaving.get_or_insert(now);
        self.due(since + HANDOVER);
        now < since + HANDOVER
    }

    /// An address that this participant does not hold: should it?
    fn obtain(
        &mut self,
        address: IpAddr,
        state: Whereabouts,
        claims: &[Claimant],
        holders: &Holders,
        now: Time,
    ) {
        let chosen = self.choice.chosen.get(&address).copied();
        let chosen = chosen.filter(|chosen| chosen.id == self.id && self.listening.is_none());
        if let Whereabouts::Blocked { until, .. } = state
            && now < until
        {
            return self.due(until);
        }
        let Some(chosen) = chosen else { return self.leave_elsewhere(address, state) };
        let alive = claims.iter().filter(|claim| !claim.silent);
        let known = self.known_epoch(address);
        if let Some(holder) = alive.max_by_key(|claim| claim.standing(address, known)) {
            if self.should_move(address, *holder, chosen, holders, now) {
                self.take(address, Some(holder.id), true, now);
            } else {
                self.leave_elsewhere(address, state);
            }
            return;
        }
        // One that is mute has been asked; others first.
        let silent = claims.iter().max_by_key(|claim| {
            let is_mute = self.peers.get(claim.id).is_some_and(|peer| peer.mute);
            (!is_mute, claim.standing(address, known))
        });
        let silent = silent.and_then(|claim| self.peers.get(claim.id).map(|p| (claim.id, p)));
        let of = match silent {
            Some((id, peer)) => Probed::Silent { id, link_address: peer.link_address },
            None => Probed::Everyone,
        };
        let sent = if silent.is_some_and(|(_, peer)| peer.mute) { PROBES } else { 0 };
        match state {
            Whereabouts::Answered { again } if now < again => self.due(again),
            Whereabouts::Probing(probing) if probing.of == of => {
                self.continue_probing(address, probing, now);
            }
            state => {
                if !state.is_watched() {
                    self.effects.push(Effect::Watch(address));
                }
                let probing = Probing { of, sent, next: now };
                self.addresses.insert(address, Whereabouts::Probing(probing));
                self.continue_probing(address, probing, now);
            }
        }
    }

    fn leave_elsewhere(&mut self, address: IpAddr, state: Whereabouts) {
        if state.is_watched() {
            self.effects.push(Effect::Unwatch(address));
        }
        self.addresses.insert(address, Whereabouts::Elsewhere);
    }

    /// Whether to take an address from a participant that is alive.
    fn should_move(
        &mut self,
        address: IpAddr,
        holder: Claimant,
        chosen: Chosen,
        holders: &Holders,
        now: Time,
    ) -> bool {
        if holder.deaf {
            return false;
        }
        if holder.rank < chosen.rank {
            return true;
        }
        let settled = now >= self.stable_since + self.timing.settle && !holders.unsettled;
        let load = holders.loads.get(&holder.id).copied().unwrap_or_default();
        let is_better = chosen.first == self.id || load > self.choice.capacity;
        // Two that see different participants do not take it from each other again and again.
        let lost = self.lost.get(&address);
        let rested = lost.is_none_or(|lost| now >= *lost + self.timing.settle);
        settled && is_better && rested && self.may_move(now)
    }

    /// Moves are spread over time.
    fn may_move(&mut self, now: Time) -> bool {
        if now >= self.moves.0 + self.timing.interval {
            self.moves = (now, 0);
        }
        self.moves.1 += 1;
        if self.moves.1 > MOVES_PER_INTERVAL {
            self.due(self.moves.0 + self.timing.interval);
            return false;
        }
        true
    }

    fn continue_probing(&mut self, address: IpAddr, mut probing: Probing, now: Time) {
        if now >= probing.next && probing.sent >= PROBES {
            if !self.may_conclude(probing, now) {
                self.due(now + self.timing.interval / 10);
                self.addresses.insert(address, Whereabouts::Probing(probing));
                return;
            }
            let from = match probing.of {
                Probed::Everyone => None,
                Probed::Silent { id, .. } => Some(id),
            };
            if let Some(peer) = from.and_then(|from| self.peers.get_mut(from)) {
                peer.table.take_from(address);
            }
            return self.take(address, from, false, now);
        }
        if now >= probing.next {
            let (frame, gap) = match probing.of {
                Probed::Everyone => (Frame::Probe(address), FRESH_GAP),
                Probed::Silent { link_address, .. } => {
                    (Frame::ProbeOf(address, link_address), self.timing.silent_gap())
                }
            };
            self.effects.push(Effect::Transmit(frame));
            probing.sent += 1;
            probing.next = now + gap;
        }
        self.due(probing.next);
        self.addresses.insert(address, Whereabouts::Probing(probing));
    }

    /// Whether what participants hold is known, or they were given the time to tell it.
    fn may_conclude(&self, probing: Probing, now: Time) -> bool {
        let is_known = |peer: &Peer| peer.table.is_complete() || peer.is_deaf(now, &self.timing);
        now >= probing.next + self.timing.silence || self.peers.alive().all(|(_, p)| is_known(p))
    }

    /// Forgets addresses that are neither wanted nor held.
    fn forget_irrelevant(&mut self) {
        let Some(wanted) = &self.wanted else { return };
        self.addresses
            .retain(|address, state| wanted.contains_key(address) || state.holding().is_some());
        let addresses = &self.addresses;
        let matters =
            |address: &IpAddr| wanted.contains_key(address) || addresses.contains_key(address);
        self.epochs.retain(|address, _| matters(address));
        self.lost.retain(|address, _| matters(address));
    }

    /// Sends the announcements that are due, first those of addresses that have just been taken.
    fn announce_due(&mut self, now: Time) {
        if self.listening.is_some() {
            return;
        }
        let due = self.held().filter(|(_, holding)| holding.pacing.due() <= now);
        let mut due: Vec<(bool, IpAddr)> =
            due.map(|(address, holding)| (!holding.pacing.is_first(), address)).collect();
        due.sort_unstable();
        for (_, address) in due {
            if !self.allowance.take(now) {
                self.due(now + self.timing.interval / 10);
                break;
            }
            if let Some(Whereabouts::Here(holding)) = self.addresses.get_mut(&address) {
                let reply = address.is_ipv4() && !holding.pacing.is_first();
                holding.pacing.sent(now);
                self.effects.push(Effect::Transmit(Frame::Announcement { address, reply }));
            }
        }
        if let Some(next) = self.held().map(|(_, holding)| holding.pacing.due()).min() {
            self.due(next.max(now + self.timing.interval / 10));
        }
    }

    fn finish_leaving(&mut self) {
        if self.leaving.is_some() && !self.left && self.held().next().is_none() {
            self.left = true;
            self.report(News::Left);
        }
    }
}
