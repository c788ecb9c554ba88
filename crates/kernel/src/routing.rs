//! Routing by source address and strict reverse path filtering, where replies may take another path
//! than requests.

use std::fs;
use std::io;
use std::net::IpAddr;

use lb_network::netlink::{Netlink, read_attributes, read_u32_at};
use nix::libc::{self, NLM_F_DUMP};
use nix::sys::socket::SockProtocol;

use super::preflight::Finding;

const CHECK: &str = "routing";

/// Rules that a finding lists: some network plugins add one for each pod.
const LISTED: usize = 3;

/// `uplinks`: names of the interfaces that clients use.
pub fn check_routing(uplinks: &[&str]) -> Vec<Finding> {
    let rules = rules().unwrap_or_else(|error| {
        // A kernel without policy routing has none.
        tracing::debug!(%error, "routing rules not listed");
        Vec::new()
    });
    let mut findings: Vec<Finding> = by_source(&rules).into_iter().collect();
    if uplinks.len() > 1 || !rules.is_empty() {
        findings.extend(uplinks.iter().copied().filter(|name| is_strict(name)).map(strict));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "replies take the paths of requests"));
    }
    findings
}

/// A reply is translated when it leaves, so its route is chosen by the pod's address.
fn by_source(rules: &[String]) -> Option<Finding> {
    let shown = match rules.len() {
        0 => return None,
        count @ ..=LISTED => rules[..count].join(", "),
        count => format!("{} and {} more", rules[..LISTED].join(", "), count - LISTED),
    };
    let message = format!(
        "rules choose routes by source address ({shown}): replies of pods to clients outside are \
         routed by the pod's address, and may leave through another interface than the one where \
         the client's packets arrived"
    );
    let fix = "If the network drops packets whose source is the address of another interface, as \
               those of cloud providers do, route replies by connection marks; docs/cni.md, \
               \"Several uplinks\", has the rules";
    Some(Finding::warning(CHECK, message, fix))
}

fn strict(uplink: &str) -> Finding {
    let message = format!(
        "rp_filter of {uplink} is 1 (strict): the kernel drops packets of clients that arrive there \
         if its route to them leads through another interface"
    );
    // In sysctl(8) a slash stands for a dot of an interface's name.
    let name = uplink.replace('.', "/");
    Finding::warning(CHECK, message, format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2"))
}

/// The kernel uses the larger one of the interface's value and that for all.
fn is_strict(device: &str) -> bool {
    let of = |name: &str| -> u8 {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    of("all").max(of(device)) == 1
}

/// The rules that choose a table by source address, as `ip rule` prints them.
fn rules() -> io::Result<Vec<String>> {
    let mut rules = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // `struct fib_rule_hdr`.
        let mut body = [0; HEADER];
        body[0] = family as u8;
        let each = |body: &[u8]| rules.extend(rule_by_source(body));
        Netlink::open(SockProtocol::NetlinkRoute)?.ask(
            libc::RTM_GETRULE,
            NLM_F_DUMP,
            &body,
            each,
        )?;
    }
    Ok(rules)
}

const HEADER: usize = 12;

/// <https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/fib_rules.h>
fn rule_by_source(body: &[u8]) -> Option<String> {
    const FRA_SRC: u16 = 2;
    const FRA_TABLE: u16 = 15;
    const TO_TABLE: u8 = 1;
    /// Offsets in the header.
    const SOURCE_LENGTH: usize = 2;
    const TABLE: usize = 4;
    const ACTION: usize = 7;
    const MAIN: u32 = 254;
    let header: &[u8; HEADER] = body.first_chunk()?;
    let (mut source, mut table) = (None, u32::from(header[TABLE]));
    for (kind, value) in read_attributes(&body[HEADER..]) {
        match kind {
            FRA_SRC => source = address(value),
            FRA_TABLE => table = read_u32_at(value, 0)?,
            _ => {}
        }
    }
    if header[ACTION] != TO_TABLE || table == MAIN {
        return None;
    }
    let (source, length) = (source?, header[SOURCE_LENGTH]);
    let is_host = length == if source.is_ipv4() { 32 } else { 128 };
    let length = if is_host { String::new() } else { format!("/{length}") };
    Some(format!("from {source}{length} lookup {table}"))
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.try_into().ok().map(|octets: [u8; 4]| octets.into()),
        16 => value.try_into().ok().map(|octets: [u8; 16]| octets.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lb_network::netlink::encode_attribute;

    use super::*;

    /// A rule's message: length of the source, action, source and table.
    fn message(length: u8, action: u8, source: &[u8], table: u32) -> Vec<u8> {
        let mut body = vec![0; HEADER];
        (body[2], body[7]) = (length, action);
        if !source.is_empty() {
            body.extend(encode_attribute(2, source));
        }
        body.extend(encode_attribute(15, &table.to_ne_bytes()));
        body
    }

    #[test]
    fn rules_that_choose_a_table_by_source_are_read() {
        let v6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (body, expected) in [
            (message(32, 1, &[10, 0, 2, 7], 2), Some("from 10.0.2.7 lookup 2")),
            (message(24, 1, &[10, 0, 2, 0], 1000), Some("from 10.0.2.0/24 lookup 1000")),
            (message(64, 1, &v6, 2), Some("from 2001:db8::/64 lookup 2")),
            // The main table is what all packets use.
            (message(32, 1, &[10, 0, 2, 7], 254), None),
            // From all, and to be refused.
            (message(0, 1, &[], 2), None),
            (message(32, 7, &[10, 0, 2, 7], 2), None),
        ] {
            assert_eq!(rule_by_source(&body).as_deref(), expected);
            for length in 0..body.len() {
                let _ = rule_by_source(&body[..length]);
            }
        }
    }

    #[test]
    fn few_of_many_rules_are_listed() {
        let rules: Vec<String> = (1..=5).map(|n| format!("from 10.0.2.{n} lookup 2")).collect();
        assert_eq!(by_source(&[]), None);
        let message = |count| by_source(&rules[..count]).expect("a finding").message;
        assert!(message(3).contains("from 10.0.2.3 lookup 2)"), "{}", message(3));
        assert!(message(5).contains("from 10.0.2.3 lookup 2 and 2 more)"), "{}", message(5));
    }

    #[test]
    fn the_fix_for_a_vlan_is_what_sysctl_accepts() {
        assert_eq!(strict("eth0.7").fix, "sysctl -w net.ipv4.conf.eth0/7.rp_filter=2");
    }
}
