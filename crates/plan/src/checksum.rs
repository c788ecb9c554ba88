//! Checksums of pools' tables, by which nodes are compared.
//!
//! A table follows from its size and its set of backends with their weights ([`lb_common::maglev`]),
//! so these are what the checksum is of. Nothing that differs between nodes enters it: no index, region or order.

use lb_common::hash::mix;
use lb_common::maglev::Weight;
use lb_rules::model::ServicePortKey;

/// The checksum of a table; 0 if it has no slots. The identities and weights may have any order.
pub fn of_table(size: u32, backends: impl IntoIterator<Item = (u64, Weight)>) -> u64 {
    if size == 0 {
        return 0;
    }
    let backends = backends.into_iter().fold(0, |sum: u64, (identity, weight)| {
        // An identity is a hash already; mixed again, sums of two of them do not coincide.
        sum.wrapping_add(mix(identity ^ mix(weight.get().into())))
    });
    mix(backends ^ mix(size.into()))
}

/// The share of a service port in the sum over all of them: by its name, because its index differs
/// between nodes.
pub(super) fn of_port(key: &ServicePortKey, table: u64) -> u64 {
    let ServicePortKey { service, port, protocol, family } = key;
    let numbers = format!("{} {}", protocol.number(), family.name());
    let names = [service.namespace.as_str(), service.name.as_str(), port.as_str(), &numbers];
    let name = names.iter().fold(0, |hash, name| {
        let octets = name.bytes().fold(hash, |hash, octet| mix(hash ^ u64::from(octet)));
        // Ends the name, so that "a", "bc" differs from "ab", "c".
        mix(octets ^ 1 << 8)
    });
    mix(name ^ mix(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_identified_by_its_size_and_backends() {
        let one = |(identity, weight)| (identity, Weight::new(weight).unwrap());
        let of = |size, all: &[(u64, u16)]| of_table(size, all.iter().copied().map(one));
        let table = of(7, &[(1, 5), (2, 6), (3, 7)]);
        assert_eq!(table, of(7, &[(3, 7), (1, 5), (2, 6)]), "their order does not matter");
        for other in [
            of(31, &[(1, 5), (2, 6), (3, 7)]),
            of(7, &[(1, 5), (2, 6)]),
            of(7, &[(1, 5), (2, 6), (4, 7)]),
            of(7, &[(1, 5), (2, 7), (3, 6)]),
            of(7, &[(1, 5), (2, 6), (3, 8)]),
        ] {
            assert_ne!(table, other);
        }
        assert_eq!(of(0, &[]), 0);
    }
}
