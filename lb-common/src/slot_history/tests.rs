use proptest::prelude::*;

use super::*;
use crate::hash::mix;
use crate::maglev;

/// Each backend is on a node of its own.
fn apart(backend: u32) -> Option<(u32, u32)> {
    Some((backend, backend))
}

fn owners(history: &SlotHistory, slot: u32) -> Vec<u32> {
    history.get(slot).into_iter().flat_map(entries).map(|owner| owner.backend).collect()
}

/// What another node remembers.
fn learned(owners: &[(u32, u32)]) -> Vec<SlotOwner> {
    let owner = |&(backend, until)| SlotOwner { backend, until, several: false };
    owners.iter().map(owner).collect()
}

#[test]
fn a_slot_remembers_its_last_owners_once_each() {
    let mut history = SlotHistory::default();
    let mut table = [1];
    for (now, next) in (10..).zip([2, 3, 2, 4, 5, 6, 7]) {
        history = history.after(&table, &[next], now, apart);
        table = [next];
    }
    assert_eq!(owners(&history, 0), [6, 5, 4, 2]);
    assert_eq!(history.get(0).unwrap().until, [16, 15, 14, 13]);
    // An earlier owner that gets its slot back is no earlier one any more.
    assert_eq!(owners(&history.after(&[7], &[5], 20, apart), 0), [7, 6, 4, 2]);
}

#[test]
fn a_slot_remembers_one_owner_of_each_node() {
    let node = |backend: u32| Some((backend, backend / 10));
    let mut history = SlotHistory::default();
    let mut table = [10];
    for (now, next) in (10..).zip([20, 21, 11, 30, 31, 40]) {
        history = history.after(&table, &[next], now, node);
        table = [next];
    }
    let seen: Vec<SlotOwner> = entries(history.get(0).unwrap()).collect();
    let owner = |backend, until| SlotOwner { backend, until, several: true };
    assert_eq!(seen, [owner(31, 15), owner(11, 13), owner(21, 12)]);
    history.learn(0, 40, learned(&[(13, 9), (22, 9), (50, 9), (60, 9)]), node);
    assert_eq!(owners(&history, 0), [31, 11, 21, 50]);
    history.forget(13);
    assert_eq!(owners(&history, 0), [31, 11]);
    history.limit(0);
    assert!(history.is_empty());
}

#[test]
fn another_backend_of_its_node_replaces_an_owner_that_stands_for_others() {
    let node = |backend: u32| Some((backend, backend / 10));
    let change = |history: &SlotHistory, old, new, now| history.after(&[old], &[new], now, node);
    let gone = |backends: &'static [u32], other: u32| {
        move |it: u32| if backends.contains(&it) { Some((other, it / 10)) } else { node(it) }
    };
    let mut history = change(&SlotHistory::default(), 10, 20, 1);
    history = change(&history, 20, 21, 2);
    history = change(&history, 21, 30, 3);
    assert_eq!(owners(&history, 0), [21, 10]);
    let known = history.clone();
    history.retain(0, gone(&[10], 15));
    assert_eq!(owners(&history, 0), [21], "10 stood for itself");
    history.retain(0, gone(&[21], 25));
    assert_eq!(owners(&history, 0), [25], "there may be connections of 20");
    assert_eq!(history.get(0).unwrap().until[0], 3 | EarlierOwners::SEVERAL);
    history.retain(0, |it: u32| (it >= 30).then_some((it, it)));
    assert!(history.is_empty(), "the node has none left");

    // One that is gone when it loses its slot.
    assert_eq!(owners(&known.after(&[30], &[40], 4, gone(&[30], 31)), 0), [21, 10]);
    // The current owner's node has a row as well: it stands for others when it loses its slot.
    let mut history = change(&known, 30, 20, 4);
    assert_eq!(owners(&history, 0), [30, 21, 10]);
    history = change(&history, 20, 40, 5);
    assert_eq!(owners(&history, 0), [20, 30, 10]);
    history.retain(0, gone(&[20], 21));
    assert_eq!(owners(&history, 0), [21, 30, 10]);
    let mut history = change(&known, 30, 25, 4);
    history.retain(0, gone(&[21], 25));
    assert_eq!(owners(&history, 0), [30, 25, 10], "the current owner, in place of another");
    history = change(&history, 25, 40, 5);
    history.retain(0, gone(&[25], 26));
    assert_eq!(owners(&history, 0), [26, 30, 10]);
}

/// Otherwise the first plan after a restart would write rows again, without any change.
#[test]
fn a_row_of_which_nobody_has_gone_stays_when_backends_move() {
    let mut history = SlotHistory::default();
    for (now, [old, new]) in (1..).zip([[10, 20], [20, 30]]) {
        history = history.after(&[old], &[new], now, apart);
    }
    let known = history.clone();
    history.retain(0, |backend| Some((backend, 1)));
    assert_eq!(history, known);
    history.retain(2, |backend| Some((backend, 1)));
    assert_eq!(owners(&history, 0), [20], "it still ages");
}

#[test]
fn an_unchanged_table_adds_nothing_and_none_has_no_history() {
    let history = SlotHistory::default();
    assert!(history.after(&[1, 2, 3], &[1, 2, 3], 5, apart).is_empty());
    assert!(history.after(&[], &[1, 2], 5, apart).is_empty());
    assert!(history.after(&[1, 2], &[], 5, apart).is_empty());
}

#[test]
fn what_another_node_remembers_is_added_behind_what_is_known() {
    let mut history = SlotHistory::default().after(&[1, 9], &[2, 9], 100, apart);
    let known = history.clone();
    history.learn(0, 2, learned(&[(1, 98)]), apart);
    assert_eq!(history, known, "the same owners, seen by a clock that differs");
    history.learn(0, 2, learned(&[(1, 98), (3, 300), (2, 40), (4, 0), (5, 0), (6, 0)]), apart);
    assert_eq!(owners(&history, 0), [1, 3, 4, 5], "no current owner, and four at most");
    assert_eq!(history.get(0).unwrap().until, [100, 100, 0, 0]);
    let known = history.clone();
    history.learn(0, 2, learned(&[(7, 400), (8, 400)]), apart);
    assert_eq!(history, known, "nothing displaces what this node has seen");
    history.learn(1, 9, learned(&[(9, 10), (NO_BACKEND, 5)]), apart);
    assert!(history.get(1).is_none());
    history.learn(1, 9, learned(&[(7, 10)]), apart);
    assert_eq!(owners(&history, 1), [7]);
}

#[test]
fn gone_and_aged_owners_are_removed() {
    let mut history = SlotHistory::default();
    for (now, [old, new]) in (10..).zip([[1, 2], [2, 3], [3, 4]]) {
        history = history.after(&[old, 9], &[new, 9], now, apart);
    }
    history.retain(0, |backend| (backend != 2).then_some((backend, backend)));
    assert_eq!(owners(&history, 0), [3, 1]);
    history.retain(11, apart);
    assert_eq!(owners(&history, 0), [3]);
    history.forget(13);
    assert!(history.is_empty());
}

#[test]
fn the_oldest_rows_are_given_up_when_there_is_no_room() {
    let first = SlotHistory::default().after(&[1, 1, 1], &[2, 1, 1], 10, apart);
    let mut history = first.after(&[2, 1, 1], &[2, 2, 2], 20, apart);
    history.limit(3);
    assert_eq!(history.len(), 3);
    history.limit(2);
    assert_eq!(history.rows().map(|(slot, _)| slot).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_table_of_another_size_has_the_owners_of_the_same_hashes() {
    for (slots, others) in [(7, 31), (31, 7), (131, 257), (257, 131), (1, 7), (7, 1), (7, 7)] {
        for slot in 0..slots {
            let found = slots_of_same_hashes(slot, slots, others);
            for hash in (0..=u32::MAX).step_by(1 << 20).chain([u32::MAX]) {
                let leads_here = hash::scale(hash, slots) == slot;
                let there = hash::scale(hash, others);
                assert!(!leads_here || found.contains(&there), "{slot} of {slots}: {there}");
            }
            let overlapping = others / slots + 2;
            assert!(found.count() as u32 <= overlapping, "{slot} of {slots} in {others}");
        }
    }
}

/// The table of some backends, by their numbers.
fn table(backends: &[u32]) -> Vec<u32> {
    let mut all: Vec<(u64, u32)> = backends.iter().map(|&n| (mix(n.into()), n)).collect();
    all.sort_unstable();
    let identities: Vec<u64> = all.iter().map(|(identity, _)| *identity).collect();
    let slots = maglev::table(&identities, maglev::fitted_size(identities.len()));
    slots.into_iter().map(|position| all[position as usize].1).collect()
}

proptest! {
    /// Whatever changes, sizes included: to which backend a hash led before is remembered, until
    /// that backend is gone or four others have had its slot.
    #[test]
    fn what_a_hash_led_to_is_found_again(
        states in prop::collection::vec(prop::collection::btree_set(1_u32..12, 1..8), 2..6),
        hashes in prop::collection::vec(any::<u32>(), 20),
    ) {
        let tables: Vec<Vec<u32>> =
            states.iter().map(|state| table(&state.iter().copied().collect::<Vec<_>>())).collect();
        let mut history = SlotHistory::default();
        for (now, tables) in (1..).zip(tables.windows(2)) {
            history = history.after(&tables[0], &tables[1], now, apart);
        }
        let current = tables.last().unwrap();
        let at = |table: &[u32], hash| table[hash::scale(hash, table.len() as u32) as usize];
        for hash in hashes {
            let owner = at(current, hash);
            let found = owners(&history, hash::scale(hash, current.len() as u32));
            prop_assert!(!found.contains(&owner));
            prop_assert!(found.len() <= HISTORY_DEPTH);
            // Tables of another size add owners of neighbouring hashes.
            let earlier = at(&tables[tables.len() - 2], hash);
            let sizes: Vec<usize> = tables.iter().map(Vec::len).collect();
            let same = sizes.iter().all(|size| *size == sizes[0]);
            if same && earlier != owner {
                prop_assert_eq!(found[0], earlier);
            }
            if same && found.len() < HISTORY_DEPTH {
                for table in &tables {
                    let was = at(table, hash);
                    prop_assert!(was == owner || found.contains(&was), "{was} of {hash:x}");
                }
            }
        }
    }
}
