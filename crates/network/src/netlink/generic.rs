//! Families of generic netlink, whose numbers the kernel assigns at run time.

use std::io;

use nix::libc::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, GENL_ID_CTRL, NLM_F_DUMP,
};

use super::{Netlink, read_attributes, read_text, read_u16_at};

/// Size of `struct genlmsghdr`: command, version, two reserved octets.
pub const GENERIC_HEADER_OCTETS: usize = 4;

/// The number of a family; `None` if the kernel does not have it.
///
/// Lists all families: a request for one by its name makes the kernel load a module.
pub fn find_generic_family(netlink: &mut Netlink, name: &str) -> io::Result<Option<u16>> {
    let mut found = None;
    let body = [CTRL_CMD_GETFAMILY as u8, 1, 0, 0];
    netlink.ask(GENL_ID_CTRL as u16, NLM_F_DUMP, &body, |body| {
        found = found.or_else(|| parse_family_number(body, name));
    })?;
    Ok(found)
}

fn parse_family_number(body: &[u8], name: &str) -> Option<u16> {
    let (mut number, mut is_it) = (None, false);
    for (kind, value) in read_attributes(body.get(GENERIC_HEADER_OCTETS..)?) {
        match i32::from(kind) {
            CTRL_ATTR_FAMILY_NAME => is_it = read_text(value) == name,
            CTRL_ATTR_FAMILY_ID => number = read_u16_at(value, 0),
            _ => {}
        }
    }
    number.filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::SockProtocol;

    use super::*;

    #[test]
    fn a_family_is_found_by_its_name() {
        let mut netlink = Netlink::open(SockProtocol::NetlinkGeneric).unwrap();
        // The family of all families, which every kernel has.
        let number = find_generic_family(&mut netlink, "nlctrl").unwrap();
        assert_eq!(number, Some(GENL_ID_CTRL as u16));
        assert_eq!(find_generic_family(&mut netlink, "no-such-family").unwrap(), None);
    }
}
