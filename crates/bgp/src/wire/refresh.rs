//! ROUTE-REFRESH messages (RFC 2918).

use super::header::{MessageKind, append_message};
use super::reader::OctetReader;
use crate::family::{Family, SAFI_UNICAST};

/// The family whose routes the peer wants again. `None` for other families, and for the markers of RFC 7313, which
/// is not announced.
pub fn parse_route_refresh(body: &[u8]) -> Option<Family> {
    let mut reader = OctetReader::new(body);
    let (afi, subtype, safi) = (reader.u16()?, reader.u8()?, reader.u8()?);
    Family::of_identifiers(afi, safi).filter(|_| subtype == 0)
}

pub fn append_route_refresh(out: &mut Vec<u8>, family: Family) {
    append_message(out, MessageKind::RouteRefresh, |out| {
        out.extend(family.afi().to_be_bytes());
        out.extend([0, SAFI_UNICAST]);
    });
}
