use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

fn address(number: u16) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + u32::from(number)).into()
}

fn held(epoch: u32) -> RowContent {
    RowContent { rank: CandidateRank::Candidate, holds: Some(epoch) }
}

fn known(table: &PeerTable) -> Vec<(IpAddr, RowContent)> {
    let claimed: Vec<IpAddr> = table.claimed_addresses().collect();
    let says = |(address, (entry, _)): (&IpAddr, &(RowContent, u64))| {
        assert_eq!(entry.holds.is_some(), claimed.contains(address));
        let holds = table.held_epochs().find(|(held, _)| held == address).map(|(_, epoch)| epoch);
        (*address, RowContent { rank: entry.rank, holds })
    };
    table.rows.iter().map(says).collect()
}

fn own(table: &OwnTable) -> Vec<(IpAddr, RowContent)> {
    let rows = table.rows.iter().map(|(address, (entry, _))| (*address, *entry));
    rows.filter(|(_, entry)| *entry != RowContent::default()).collect()
}

#[test]
fn a_thousand_addresses_arrive_in_parts_that_fit() {
    let mut table = OwnTable::default();
    for number in 0..1_000 {
        table.set_row(address(number), held(1));
    }
    let mut copy = PeerTable::default();
    let mut parts = 0;
    while copy.known_version() != table.current_version() {
        let changes = table.changes_since(copy.known_version(), 1_000);
        assert!(changes.rows.iter().map(TableRow::length).sum::<usize>() <= 1_000);
        assert!(copy.apply_changes(table.current_version(), &changes).rows);
        parts += 1;
    }
    assert_eq!(parts, 10);
    assert_eq!(known(&copy), own(&table));
}

/// Candidates that others do not know of would become second holders.
#[test]
fn the_most_addresses_of_a_link_arrive_whole_and_stay_so() {
    let mut table = OwnTable::default();
    let of = |number: usize| IpAddr::V6((0x2001_0db8_u128 << 96 | number as u128).into());
    for number in 0..MAX_ADDRESSES {
        table.set_row(of(number), RowContent { rank: CandidateRank::Candidate, holds: None });
    }
    let mut copy = PeerTable::default();
    let follow = |copy: &mut PeerTable, table: &OwnTable| {
        while copy.known_version() != table.current_version() {
            let before = copy.known_version();
            copy.apply_changes(table.current_version(), &table.changes_since(before, 1_000));
            assert!(copy.known_version() > before, "it is stuck at {} rows", copy.rows.len());
        }
    };
    follow(&mut copy, &table);
    assert_eq!((copy.is_complete(), copy.candidacies().count()), (true, MAX_ADDRESSES));
    // Others take the place of some.
    for number in 0..3 * MAX_EMPTY_ROWS {
        table.set_row(of(number), RowContent::default());
        table.set_row(
            of(MAX_ADDRESSES + number),
            RowContent { rank: CandidateRank::Candidate, holds: None },
        );
        follow(&mut copy, &table);
    }
    assert_eq!(copy.candidacies().count(), MAX_ADDRESSES);
    assert_eq!(known(&copy), own(&table));
}

#[test]
fn a_table_without_room_for_all_rows_is_not_taken_for_complete() {
    let mut table = OwnTable::default();
    for number in 0..=MAX_TABLE_ROWS {
        let address = Ipv4Addr::from(number as u32).into();
        table.set_row(address, RowContent { rank: CandidateRank::Candidate, holds: None });
    }
    let mut copy = PeerTable::default();
    for _ in 0..200 {
        copy.apply_changes(
            table.current_version(),
            &table.changes_since(copy.known_version(), 1_000),
        );
    }
    assert!(!copy.is_complete());
    assert!(copy.rows.len() <= MAX_TABLE_ROWS);
}

#[test]
fn a_sender_of_ever_new_addresses_takes_bounded_memory() {
    let mut copy = PeerTable::default();
    for number in 0..100_000_u32 {
        let row = TableRow {
            address: Ipv4Addr::from(number).into(),
            rank: CandidateRank::Candidate,
            holds: None,
        };
        let since = if number == 0 {
            VERSIONS_PER_GENERATION
        } else {
            VERSIONS_PER_GENERATION + u64::from(number)
        };
        let until = since + 1;
        copy.apply_changes(until + 1, &TableChanges { since, until, rows: vec![row] });
    }
    assert_eq!(copy.rows.len(), MAX_TABLE_ROWS);
}

#[test]
fn empty_rows_of_a_sender_are_bounded() {
    let mut table = OwnTable::default();
    let mut copy = PeerTable::default();
    for number in 0..20_000_u16 {
        table.set_row(address(number), held(1));
        table.set_row(address(number), RowContent::default());
        assert!(table.rows.len() <= MAX_EMPTY_ROWS + 1);
        copy.apply_changes(
            table.current_version(),
            &table.changes_since(copy.known_version(), 1_000),
        );
    }
    assert!(known(&copy).is_empty());
}

#[test]
fn what_was_taken_from_a_participant_counts_again_when_it_is_back() {
    let mut table = OwnTable::default();
    table.set_row(address(1), held(1));
    table.set_row(address(2), held(1));
    let mut copy = PeerTable::default();
    copy.apply_changes(table.current_version(), &table.changes_since(0, 1_000));
    copy.mark_taken(address(1));
    let taken = RowContent { rank: CandidateRank::Candidate, holds: None };
    assert_eq!(known(&copy), [(address(1), taken), (address(2), held(1))]);
    copy.restore_taken();
    assert_eq!(known(&copy), own(&table));
    // Addresses that were taken from a process are not given back to its successor.
    copy.mark_taken(address(1));
    copy.expect_whole_table();
    copy.restore_taken();
    assert_eq!(known(&copy)[0], (address(1), taken));
}

#[derive(Clone, Debug)]
enum Do {
    Set(u16, RowContent),
    /// A message with the changes since an older version, which may be lost.
    Send(u64, bool),
    Restart,
}

#[test]
fn messages_in_any_order_make_a_complete_copy() {
    let mut table = OwnTable::default();
    for number in 0..100 {
        table.set_row(address(number), held(1));
    }
    let mut parts = Vec::new();
    let mut since = 0;
    while since != table.current_version() {
        parts.push((table.current_version(), table.changes_since(since, 100)));
        since = parts[parts.len() - 1].1.until;
    }
    table.set_row(address(3), held(2));
    parts.push((table.current_version(), table.changes_since(since, 100)));
    let mut copy = PeerTable::default();
    parts
        .iter()
        .rev()
        .for_each(|(newest, changes)| assert!(copy.apply_changes(*newest, changes).rows));
    assert!(copy.is_complete());
    assert_eq!(known(&copy), own(&table));
}

fn deeds() -> impl Strategy<Value = Vec<Do>> {
    let entry = prop_oneof![Just(RowContent::default()), (0_u32..3).prop_map(held)];
    let deed = prop_oneof![
        6 => (0_u16..20, entry).prop_map(|(number, entry)| Do::Set(number, entry)),
        4 => (0_u64..5, any::<bool>()).prop_map(|(older, lost)| Do::Send(older, lost)),
        1 => Just(Do::Restart),
    ];
    prop::collection::vec(deed, 0..200)
}

proptest! {
    #[test]
    fn a_copy_that_is_complete_is_right(deeds in deeds(), room in 20_usize..200) {
        let mut table = OwnTable::default();
        let mut copy = PeerTable::default();
        for deed in deeds {
            match deed {
                Do::Set(number, entry) => drop(table.set_row(address(number), entry)),
                Do::Send(older, lost) => {
                    let changes = table.changes_since(copy.known_version().saturating_sub(older), room);
                    if !lost {
                        copy.apply_changes(table.current_version(), &changes);
                    }
                }
                Do::Restart => {
                    table = OwnTable::default();
                    copy.expect_whole_table();
                }
            }
            if copy.is_complete() && copy.known_version() == table.current_version() {
                prop_assert_eq!(known(&copy), own(&table));
            }
        }
    }
}
