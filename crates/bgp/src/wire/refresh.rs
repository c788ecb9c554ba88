//! ROUTE-REFRESH messages (RFC 2918).

use super::message::{Kind, append};
use super::reader::Reader;
use crate::family::{Family, UNICAST};

/// The family whose routes the peer wants again. `None` for other families, and for the markers of RFC 7313, which
/// is not announced.
pub fn parse(body: &[u8]) -> Option<Family> {
    let mut reader = Reader::new(body);
    let (afi, subtype, safi) = (reader.u16()?, reader.u8()?, reader.u8()?);
    Family::of_identifiers(afi, safi).filter(|_| subtype == 0)
}

pub fn encode(out: &mut Vec<u8>, family: Family) {
    append(out, Kind::RouteRefresh, |out| {
        out.extend(family.afi().to_be_bytes());
        out.extend([0, UNICAST]);
    });
}
