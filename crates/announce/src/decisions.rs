//! Which addresses to take, keep and give up.

use std::net::IpAddr;

use super::address_state::{AddressProbe, AddressState, HeldAddress, ProbeTarget};
use super::choice::{Candidates, ChosenHolder, choose_holders};
use super::event::{ElectionEvent, LinkEffect, LinkFrame};
use super::identity::CandidateRank;
use super::link::LinkElection;
use super::pacing::FramePacing;
use super::remote_holders::{RemoteHolder, RemoteHolders};
use super::timing::{HANDOVER_TIMEOUT, MAX_MOVES_PER_INTERVAL, PROBES_BEFORE_TAKING, Time};

impl LinkElection {
    /// Takes the decisions that are due. A decision may change the candidates and thereby the
    /// choice, so this repeats until nothing changes, but at most three times.
    pub(super) fn decide_until_stable(&mut self, all_read: bool, now: Time) {
        for _ in 0..3 {
            if self.dirty || now >= self.decide_at {
                self.dirty = false;
                self.decide_at = now + self.timing.settle;
                self.decide_all(all_read, now);
                self.update_table();
            }
        }
    }

    fn decide_all(&mut self, all_read: bool, now: Time) {
        if !self.usable {
            self.give_up_without_a_link(now);
            return;
        }
        if all_read {
            self.check_liveness(now);
        }
        if self.outdated && self.listening.is_none() {
            self.outdated = false;
            self.choice = choose_holders(&self.list_candidates());
        }
        let holders = self.list_remote_holders(now);
        for address in self.list_relevant_addresses() {
            let claims = holders.claims.get(&address).map_or(&[][..], Vec::as_slice);
            match self.addresses.get(&address).copied().unwrap_or(AddressState::Elsewhere) {
                AddressState::Here(holding) => {
                    self.decide_held_address(address, holding, claims, now)
                }
                state => self.decide_other_address(address, state, claims, &holders, now),
            }
        }
        self.forget_irrelevant();
        if all_read {
            self.send_due_probes(now);
        }
        self.announce_due(now);
        self.report_if_left();
        if let Some(silence) = self.peers.next_silence(&self.timing) {
            self.schedule_decision(silence);
        }
        let settled = self.stable_since + self.timing.settle;
        if settled > now {
            self.schedule_decision(settled);
        }
        self.repeat_after_return(now);
    }

    /// By the time of this report, a participant that has returned has given up what it does not keep.
    fn repeat_after_return(&mut self, now: Time) {
        let Some(due) = self.returned_at.map(|at| at + HANDOVER_TIMEOUT) else { return };
        if now < due {
            return self.schedule_decision(due);
        }
        self.returned_at = None;
        let held: Vec<IpAddr> = self.held_addresses().map(|(address, _)| address).collect();
        self.effects.extend(held.into_iter().map(LinkEffect::StillHeld));
    }

    pub(super) fn schedule_decision(&mut self, at: Time) {
        self.decide_at = self.decide_at.min(at);
    }

    /// Gives up all addresses once the interface has been down for longer than the limit of
    /// silence: by then other nodes have taken them over.
    fn give_up_without_a_link(&mut self, now: Time) {
        let limit = self.unusable_since + self.timing.silence;
        if now < limit {
            return self.schedule_decision(limit);
        }
        let held: Vec<IpAddr> = self.held_addresses().map(|(address, _)| address).collect();
        held.into_iter().for_each(|address| self.release_address(address, None));
        self.addresses.clear();
        self.peers.forget_peers();
        self.outdated = true;
        self.report_if_left();
    }

    fn list_candidates(&self) -> Candidates {
        let mut candidates = Candidates::new();
        let wanted = self.wanted.iter().flatten();
        for (address, rank) in wanted.map(|(address, _)| (*address, self.own_rank(*address))) {
            if rank != CandidateRank::None {
                candidates.entry(address).or_default().push((self.id, rank));
            }
        }
        for (id, peer) in self.peers.alive_peers() {
            for (address, rank) in peer.table.candidacies() {
                candidates.entry(address).or_default().push((id, rank));
            }
        }
        candidates
    }

    /// The addresses that this participant wants, and those that it keeps a state for.
    fn list_relevant_addresses(&self) -> Vec<IpAddr> {
        let wanted = self.wanted.iter().flatten().map(|(address, _)| *address);
        let mut relevant: Vec<IpAddr> = wanted.chain(self.addresses.keys().copied()).collect();
        relevant.sort_unstable();
        relevant.dedup();
        relevant
    }

    pub(super) fn held_addresses(&self) -> impl Iterator<Item = (IpAddr, &HeldAddress)> {
        let held = self.addresses.iter();
        held.filter_map(|(address, state)| state.holding().map(|holding| (*address, holding)))
    }

    /// Decides whether this participant keeps an address that it holds.
    fn decide_held_address(
        &mut self,
        address: IpAddr,
        mut holding: HeldAddress,
        claims: &[RemoteHolder],
        now: Time,
    ) {
        let rival = claims.iter().filter(|claim| !claim.silent && !claim.doubtful);
        let precedence = |claim: &RemoteHolder| claim.precedence(address, holding.epoch);
        // A deaf rival does not receive this node's heartbeats, so it would not give way to a
        // higher epoch. It gets the address.
        let rival = rival.max_by_key(|claim| (claim.deaf, precedence(claim)));
        if let Some(rival) = rival
            && (rival.deaf || precedence(rival) > (0, self.id.weight_for(address)))
        {
            self.lost.insert(address, now);
            return self.release_address(address, Some(rival.id));
        }
        // A rival's frames have pointed clients to its node. When a rival appears or is gone,
        // announce the address again.
        if holding.rival != rival.map(|rival| rival.id) {
            if holding.rival.is_some() {
                self.effects.push(LinkEffect::StillHeld(address));
            }
            holding.rival = rival.map(|rival| rival.id);
            holding.pacing = FramePacing::start(now);
        }
        if self.listening.is_none() && !self.may_keep_address(address, &mut holding, now) {
            return self.release_address(address, None);
        }
        let extends = self.listening.is_none() || self.knows_nothing();
        if extends && now >= holding.extend {
            holding.extend = now + self.timing.extension_interval();
            let (epoch, hold) = (holding.epoch, self.timing.hold);
            self.effects.push(LinkEffect::Announce { address, epoch, hold });
        }
        if extends {
            self.schedule_decision(holding.extend);
        }
        self.addresses.insert(address, AddressState::Here(holding));
    }

    /// Whether this participant has listened for long enough, and only the list of wanted
    /// addresses is missing.
    fn knows_nothing(&self) -> bool {
        self.wanted.is_none() && self.listening.is_some_and(|listening| listening.has_lasted)
    }

    /// Whether this participant is a candidate, or was one until recently and still waits for
    /// another node to take over.
    fn may_keep_address(&mut self, address: IpAddr, holding: &mut HeldAddress, now: Time) -> bool {
        let is_wanted = self.wanted.as_ref().is_none_or(|wanted| wanted.contains_key(&address));
        if !is_wanted {
            return false;
        }
        if self.own_rank(address) != CandidateRank::None {
            holding.leaving = None;
            return true;
        }
        let since = *holding.leaving.get_or_insert(now);
        self.schedule_decision(since + HANDOVER_TIMEOUT);
        now < since + HANDOVER_TIMEOUT
    }

    /// Decides whether this participant takes an address that it does not hold.
    fn decide_other_address(
        &mut self,
        address: IpAddr,
        state: AddressState,
        claims: &[RemoteHolder],
        holders: &RemoteHolders,
        now: Time,
    ) {
        let chosen = self.choice.chosen.get(&address).copied();
        let chosen = chosen.filter(|chosen| chosen.id == self.id && self.listening.is_none());
        if let AddressState::Blocked { until, .. } = state
            && now < until
        {
            return self.schedule_decision(until);
        }
        let Some(chosen) = chosen else { return self.leave_elsewhere(address, state) };
        let alive = claims.iter().filter(|claim| !claim.silent);
        let known = self.known_epoch(address);
        if let Some(holder) = alive.max_by_key(|claim| claim.precedence(address, known)) {
            if self.should_move_address(address, *holder, chosen, holders, now) {
                self.take_address(address, Some(holder.id), true, now);
            } else {
                self.leave_elsewhere(address, state);
            }
            return;
        }
        // The kernel of a mute holder has been probed already, so other silent ones come first.
        let silent = claims.iter().max_by_key(|claim| {
            let is_mute = self.peers.get(claim.id).is_some_and(|peer| peer.mute);
            (!is_mute, claim.precedence(address, known))
        });
        let silent = silent.and_then(|claim| self.peers.get(claim.id).map(|p| (claim.id, p)));
        let of = match silent {
            Some((id, peer)) => ProbeTarget::Silent { id, link_address: peer.link_address },
            None => ProbeTarget::Everyone,
        };
        let sent = if silent.is_some_and(|(_, peer)| peer.mute) { PROBES_BEFORE_TAKING } else { 0 };
        match state {
            AddressState::Answered { again } if now < again => self.schedule_decision(again),
            AddressState::Probing(probing) if probing.of == of => {}
            state => {
                if !state.is_watched() {
                    self.effects.push(LinkEffect::Watch(address));
                }
                let probing = AddressProbe { of, sent, next: now };
                self.addresses.insert(address, AddressState::Probing(probing));
            }
        }
    }

    fn leave_elsewhere(&mut self, address: IpAddr, state: AddressState) {
        if state.is_watched() {
            self.effects.push(LinkEffect::Unwatch(address));
        }
        self.addresses.insert(address, AddressState::Elsewhere);
    }

    /// Whether to take an address from a participant that is alive.
    fn should_move_address(
        &mut self,
        address: IpAddr,
        holder: RemoteHolder,
        chosen: ChosenHolder,
        holders: &RemoteHolders,
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
        // Otherwise two nodes that see different participants would take the address from each
        // other again and again.
        let lost = self.lost.get(&address);
        let rested = lost.is_none_or(|lost| now >= *lost + self.timing.settle);
        settled && is_better && rested && self.spend_move_allowance(now)
    }

    /// Limits how many addresses move during an interval.
    fn spend_move_allowance(&mut self, now: Time) -> bool {
        if now >= self.moves.0 + self.timing.interval {
            self.moves = (now, 0);
        }
        self.moves.1 += 1;
        if self.moves.1 > MAX_MOVES_PER_INTERVAL {
            self.schedule_decision(self.moves.0 + self.timing.interval);
            return false;
        }
        true
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
        let due =
            self.held_addresses().filter(|(_, holding)| holding.pacing.next_frame_at() <= now);
        let mut due: Vec<(bool, IpAddr)> =
            due.map(|(address, holding)| (!holding.pacing.is_first(), address)).collect();
        due.sort_unstable();
        for (_, address) in due {
            if !self.allowance.take(now) {
                self.schedule_decision(now + self.timing.interval / 10);
                break;
            }
            if let Some(AddressState::Here(holding)) = self.addresses.get_mut(&address) {
                let reply = address.is_ipv4() && !holding.pacing.is_first();
                holding.pacing.note_frame_sent(now);
                self.effects.push(LinkEffect::Transmit(LinkFrame::Announcement { address, reply }));
            }
        }
        if let Some(next) =
            self.held_addresses().map(|(_, holding)| holding.pacing.next_frame_at()).min()
        {
            self.schedule_decision(next.max(now + self.timing.interval / 10));
        }
    }

    fn report_if_left(&mut self) {
        if self.leaving.is_some() && !self.left && self.held_addresses().next().is_none() {
            self.left = true;
            self.report(ElectionEvent::Left);
        }
    }
}
