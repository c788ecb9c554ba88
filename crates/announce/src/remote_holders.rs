//! The addresses that other participants claim to hold.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::identity::{CandidateRank, ParticipantId, epoch_distance};
use super::link::LinkElection;
use super::timing::Time;

/// Another participant whose heartbeats say that it holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteHolder {
    pub id: ParticipantId,
    pub epoch: u32,
    pub silent: bool,
    /// The holder does not hear this participant.
    pub deaf: bool,
    /// The holder hears no other participant, and it is not known yet whether clients can reach it.
    pub doubtful: bool,
    pub rank: CandidateRank,
}

impl RemoteHolder {
    /// Of several participants that claim an address, the one with the greatest precedence holds it.
    pub fn precedence(&self, address: IpAddr, known: u32) -> (i32, (u64, ParticipantId)) {
        (epoch_distance(self.epoch, known), self.id.weight_for(address))
    }
}

/// What others hold, in one pass over their tables.
#[derive(Debug, Default)]
pub(super) struct RemoteHolders {
    pub claims: BTreeMap<IpAddr, Vec<RemoteHolder>>,
    /// How many addresses each holds.
    pub loads: BTreeMap<ParticipantId, usize>,
    /// A silent participant holds addresses, and may come back.
    pub unsettled: bool,
}

impl LinkElection {
    pub(super) fn list_remote_holders(&self, now: Time) -> RemoteHolders {
        let mut holders = RemoteHolders::default();
        let deaf_after = self.peers.deaf_after(&self.timing);
        for (id, peer) in self.peers.iter() {
            let deaf = peer.hears_nobody || peer.is_deaf(now, deaf_after);
            let passed = self.reachability_probes.get(&id).and_then(|probe| probe.passed);
            let doubtful = peer.hears_nobody && passed.is_none();
            let silent = peer.silent || peer.mute;
            for (address, epoch) in peer.table.held_epochs() {
                let rank = peer.table.candidate_rank(address);
                let holder = RemoteHolder { id, epoch, silent, deaf, doubtful, rank };
                holders.claims.entry(address).or_default().push(holder);
                *holders.loads.entry(id).or_default() += 1;
                holders.unsettled |= silent;
            }
        }
        holders
    }
}
