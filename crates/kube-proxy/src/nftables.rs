//! Lists and removes chains and rules of nftables, and of iptables where it uses nftables.
//!
//! <https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/netfilter/nf_tables.h>

use std::collections::BTreeSet;
use std::io;

use lb_network::netlink::{
    Netlink, encode_attribute, encode_text_attribute, read_attributes, read_text,
};
use nix::libc::{
    NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES, NLM_F_ACK, NLM_F_DUMP,
};
use nix::sys::socket::SockProtocol;

use super::plan::{Chain, Jump, Leftovers, NftablesTable};

const DELETE_TABLE: u16 = 2;
const GET_CHAIN: u16 = 4;
const DELETE_CHAIN: u16 = 5;
const GET_RULE: u16 = 7;
const DELETE_RULE: u16 = 8;

/// Attributes of tables, chains and rules.
const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;

/// `struct nfgenmsg`: family, version, resource.
const HEADER: usize = 4;
/// A datagram must fit into the socket's send buffer, which has at least 200 KiB.
const MOST_BYTES: usize = 128 << 10;

pub fn list_chains() -> io::Result<BTreeSet<Chain>> {
    let mut chains = BTreeSet::new();
    dump(GET_CHAIN, |body| chains.extend(read_chain(body)))?;
    Ok(chains)
}

/// All rules that jump to a chain.
pub fn list_jumps() -> io::Result<BTreeSet<Jump>> {
    let mut jumps = BTreeSet::new();
    dump(GET_RULE, |body| jumps.extend(read_jump(body)))?;
    Ok(jumps)
}

/// Removes chains and rules of kube-proxy, jumps first, so that packets meet either all of the rest or nothing of it.
pub fn remove_leftovers(leftovers: &Leftovers) -> io::Result<()> {
    let jumps = leftovers.jumps.iter().map(|jump| {
        let handle = encode_attribute(RULE_HANDLE, &jump.handle.to_be_bytes());
        request(DELETE_RULE, &jump.table, &[encode_text_attribute(RULE_CHAIN, &jump.chain), handle])
    });
    // Without a handle: all rules of the chain.
    let rules = leftovers.chains.iter().map(|chain| {
        request(DELETE_RULE, &chain.table, &[encode_text_attribute(RULE_CHAIN, &chain.name)])
    });
    let chains = leftovers.chains.iter().map(|chain| {
        request(DELETE_CHAIN, &chain.table, &[encode_text_attribute(CHAIN_NAME, &chain.name)])
    });
    let tables = leftovers.tables.iter().map(|table| request(DELETE_TABLE, table, &[]));
    let mut netlink = Netlink::open(SockProtocol::NetlinkNetFilter)?;
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for request in jumps.chain(rules).chain(chains).chain(tables) {
        bytes += request.1.len() + 32;
        batch.push(request);
        if bytes > MOST_BYTES {
            commit(&mut netlink, std::mem::take(&mut batch))?;
            bytes = 0;
        }
    }
    if batch.is_empty() { Ok(()) } else { commit(&mut netlink, batch) }
}

/// Executes all requests, or none.
fn commit(netlink: &mut Netlink, requests: Vec<(u16, Vec<u8>)>) -> io::Result<()> {
    let bounds = |kind| {
        let mut header = vec![0; HEADER];
        header[2..].copy_from_slice(&(NFNL_SUBSYS_NFTABLES as u16).to_be_bytes());
        (kind as u16, 0, header)
    };
    let last = requests.len() - 1;
    let requests = requests.into_iter().enumerate().map(|(number, (kind, body))| {
        // Errors are always reported; one acknowledgement of success is enough.
        (kind, if number == last { NLM_F_ACK } else { 0 }, body)
    });
    let mut messages = vec![bounds(NFNL_MSG_BATCH_BEGIN)];
    messages.extend(requests);
    messages.push(bounds(NFNL_MSG_BATCH_END));
    netlink.ask_together(&messages)
}

fn message(kind: u16) -> u16 {
    (NFNL_SUBSYS_NFTABLES as u16) << 8 | kind
}

fn request(kind: u16, table: &NftablesTable, attributes: &[Vec<u8>]) -> (u16, Vec<u8>) {
    let mut body = vec![table.family, 0, 0, 0];
    body.extend(encode_text_attribute(TABLE, &table.name));
    body.extend(attributes.concat());
    (message(kind), body)
}

/// For all address families.
fn dump(kind: u16, each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut netlink = Netlink::open(SockProtocol::NetlinkNetFilter)?;
    netlink.ask(message(kind), NLM_F_DUMP, &[0; HEADER], each)
}

/// An attribute's value, by its kind.
fn find(body: &[u8], wanted: u16) -> Option<&[u8]> {
    read_attributes(body).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

fn read_table(body: &[u8]) -> Option<NftablesTable> {
    Some(NftablesTable {
        family: *body.first()?,
        name: read_text(find(body.get(HEADER..)?, TABLE)?),
    })
}

fn read_chain(body: &[u8]) -> Option<Chain> {
    let all = body.get(HEADER..)?;
    Some(Chain {
        table: read_table(body)?,
        name: read_text(find(all, CHAIN_NAME)?),
        is_base: find(all, CHAIN_HOOK).is_some(),
    })
}

fn read_jump(body: &[u8]) -> Option<Jump> {
    let all = body.get(HEADER..)?;
    let target =
        read_attributes(find(all, RULE_EXPRESSIONS)?).find_map(|(_, one)| jump_target(one))?;
    Some(Jump {
        table: read_table(body)?,
        chain: read_text(find(all, RULE_CHAIN)?),
        handle: u64::from_be_bytes(find(all, RULE_HANDLE)?.try_into().ok()?),
        target,
    })
}

/// The chain that an expression jumps to.
pub fn jump_target(expression: &[u8]) -> Option<String> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    const IMMEDIATE_DATA: u16 = 2;
    const VERDICT: u16 = 2;
    const VERDICT_CHAIN: u16 = 2;
    if read_text(find(expression, NAME)?) != "immediate" {
        return None;
    }
    let value = find(find(expression, DATA)?, IMMEDIATE_DATA)?;
    Some(read_text(find(find(value, VERDICT)?, VERDICT_CHAIN)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(expression: &str) -> Vec<u8> {
        let verdict =
            encode_attribute(2, &encode_attribute(2, &encode_text_attribute(2, "KUBE-SERVICES")));
        let immediate =
            [encode_text_attribute(1, expression), encode_attribute(2, &verdict)].concat();
        let counter = encode_attribute(1, &encode_text_attribute(1, "counter"));
        let expressions = [counter, encode_attribute(1, &immediate)].concat();
        let attributes = [
            encode_text_attribute(TABLE, "nat"),
            encode_text_attribute(RULE_CHAIN, "PREROUTING"),
            encode_attribute(RULE_HANDLE, &7u64.to_be_bytes()),
            encode_attribute(RULE_EXPRESSIONS, &expressions),
        ];
        [&[2, 0, 0, 0][..], &attributes.concat()].concat()
    }

    #[test]
    fn a_jump_is_read_from_a_rule() {
        let jump = read_jump(&rule("immediate")).expect("a jump");
        assert_eq!((jump.table.to_string(), jump.handle), ("ip nat".to_owned(), 7));
        assert_eq!((&*jump.chain, &*jump.target), ("PREROUTING", "KUBE-SERVICES"));
        assert_eq!(read_jump(&rule("bitwise")), None);
    }

    #[test]
    fn a_chain_is_read_with_its_table() {
        let body = [
            encode_text_attribute(TABLE, "nat"),
            encode_text_attribute(CHAIN_NAME, "KUBE-SERVICES"),
        ];
        let body = [&[10, 0, 0, 0][..], &body.concat()].concat();
        let chain = read_chain(&body).expect("a chain");
        assert_eq!((chain.to_string(), chain.is_base), ("ip6 nat KUBE-SERVICES".to_owned(), false));
        for length in 0..body.len() - 4 {
            assert_eq!(read_chain(&body[..length]), None, "{length}");
        }
    }
}
