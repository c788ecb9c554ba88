//! Arbitrary bytes as a packet.

use lb_common::header::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};
use lb_common::layout::{Bitmap, DESTINATION_WORDS, Reason, SOURCE_WORDS};

use crate::inspect::{self, Other};
use crate::universe::DEVICE;
use crate::{FuzzedHost, Hook, PipelineFate};

/// Without any Service, a packet passes unmodified, and is counted for the reason that its headers
/// give.
pub fn parser(bytes: &[u8]) {
    thread_local! {
        static HOST: FuzzedHost = open_to_everything();
    }
    HOST.with(|host| {
        for hook in [Hook::Forward, Hook::Workload, Hook::Reverse] {
            host.tables.reasons.borrow_mut().clear();
            let outcome = host.run(hook, bytes);
            assert_eq!(outcome.fate, PipelineFate::Passed, "{hook:?}");
            assert_eq!(outcome.bytes, bytes, "{hook:?}");
            let counted: Vec<Reason> = host.tables.reasons.borrow().keys().copied().collect();
            let expected = if hook == Hook::Reverse { leaving(bytes) } else { arriving(bytes) };
            assert!(expected.contains(&counted), "{hook:?}: {counted:?}, expected {expected:?}");
        }
    });
}

/// Empty tables behind prefilters that let everything through.
fn open_to_everything() -> FuzzedHost {
    let mut host = FuzzedHost::new(1, DEVICE);
    // The link-layer addresses are as random as the rest.
    host.tables.link_addresses.clear();
    let words = |words: u32| (0..words).flat_map(|word| (0..64).map(move |n| (word, 1 << n)));
    for (word, bit) in words(DESTINATION_WORDS) {
        host.tables.set_destination(Bitmap { word, bit }, true);
    }
    for (word, bit) in words(SOURCE_WORDS) {
        host.tables.set_source(Bitmap { word, bit }, true);
    }
    host
}

/// The reasons that may be counted for an arriving packet.
fn arriving(bytes: &[u8]) -> Vec<Vec<Reason>> {
    let found = match inspect::parse_frame(bytes) {
        Ok(found) => found,
        Err(Other::NotIp) => return vec![vec![]],
        Err(Other::Malformed) => return vec![vec![Reason::Malformed]],
    };
    if found.fragment.is_some() {
        return one_of(&[Reason::Fragment, Reason::Malformed, Reason::UnknownProtocol]);
    }
    match found.protocol {
        TCP | UDP | SCTP if found.ports(bytes).is_some() => vec![vec![Reason::NoFrontend]],
        TCP | UDP | SCTP => vec![vec![Reason::Malformed]],
        ICMP | ICMPV6 => {
            one_of(&[Reason::UnknownProtocol, Reason::UnknownQuote, Reason::Malformed])
        }
        _ => vec![vec![Reason::UnknownProtocol]],
    }
}

/// The reasons that may be counted for a leaving packet. One that could not be a reply counts none.
fn leaving(bytes: &[u8]) -> Vec<Vec<Reason>> {
    let parsed = inspect::parse_frame(bytes)
        .is_ok_and(|found| found.fragment.is_none() && found.ports(bytes).is_some());
    let fragment = inspect::parse_frame(bytes).is_ok_and(|found| found.fragment.is_some());
    match (parsed, fragment) {
        (true, _) => vec![vec![Reason::NoFlow]],
        (_, true) => [vec![vec![]], one_of(&[Reason::Fragment, Reason::NoFlow])].concat(),
        _ => vec![vec![]],
    }
}

fn one_of(reasons: &[Reason]) -> Vec<Vec<Reason>> {
    reasons.iter().map(|&reason| vec![reason]).collect()
}
