//! The addresses that other participants claim to hold.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::identity::{Id, Rank, ahead};
use super::link::Link;
use super::timing::Time;

/// Another participant that claims to hold an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claimant {
    pub id: Id,
    pub epoch: u32,
    pub silent: bool,
    /// It does not hear this participant.
    pub deaf: bool,
    /// It hears no other participant, and it is not known yet whether clients can reach it.
    pub doubtful: bool,
    pub rank: Rank,
}

impl Claimant {
    /// Of several claimants, the one with the greatest standing holds the address.
    pub fn standing(&self, address: IpAddr, known: u32) -> (i32, (u64, Id)) {
        (ahead(self.epoch, known), self.id.weight(address))
    }
}

/// What others hold, in one pass over their tables.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub claims: BTreeMap<IpAddr, Vec<Claimant>>,
    /// How many addresses each holds.
    pub loads: BTreeMap<Id, usize>,
    /// A silent participant holds addresses, and may come back.
    pub unsettled: bool,
}

impl Link {
    pub(super) fn holders(&self, now: Time) -> Holders {
        let mut holders = Holders::default();
        let deaf_after = self.peers.deaf_after(&self.timing);
        for (id, peer) in self.peers.iter() {
            let deaf = peer.hears_nobody || peer.is_deaf(now, deaf_after);
            let passed = self.exams.get(&id).and_then(|exam| exam.passed);
            let doubtful = peer.hears_nobody && passed.is_none();
            let silent = peer.silent || peer.mute;
            for (address, epoch) in peer.table.held() {
                let rank = peer.table.rank(address);
                let claimant = Claimant { id, epoch, silent, deaf, doubtful, rank };
                holders.claims.entry(address).or_default().push(claimant);
                *holders.loads.entry(id).or_default() += 1;
                holders.unsettled |= silent;
            }
        }
        holders
    }
}
