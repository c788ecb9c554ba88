//! Programs of other software at hooks that Millrace uses.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use aya::programs::{ProgramInfo, SchedClassifier, TcAttachType, loaded_programs};
use lb_network::netlink::{Netlink, read_attributes, read_u32_at};
use nix::libc::{NLM_F_DUMP, RTM_GETLINK};
use nix::sys::socket::SockProtocol;

use super::attach::filters_of_others;
use super::hook::HookPoint;
use super::preflight::Finding;
use super::survey::read_pinned_links;

/// Whether an interface that is to be served has programs of other software.
pub fn on_device(device: &str, index: u32, pin_path: &Path, with_xdp: bool) -> Result<Finding> {
    let check = format!("programs on {device}");
    let ours = our_programs(pin_path)?;
    if let Some(program) = xdp_program(index)?
        && !ours.contains(&program)
    {
        let name = called(program);
        let message = format!("another program holds XDP: {name}, id {program}");
        let fix = format!(
            "`bpftool net show dev {device}` shows it. Detach it: `ip link set dev {device} xdp \
             off`, or stop the program that attached it; or leave it, and serve without XDP: --xdp-mode off"
        );
        return Ok(if with_xdp {
            Finding::error(&check, message, fix)
        } else {
            Finding::ok(&check, message)
        });
    }
    let mut others = Vec::new();
    for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
        // Without tcx in the kernel there are none.
        let programs = SchedClassifier::query_tcx(device, direction).map_or(Vec::new(), |(_, p)| p);
        others.extend(programs.into_iter().filter(|program| !ours.contains(&program.id())));
    }
    let other_agents = filters_of_others(index, pin_path)?;
    // The name `out` is too common, and an agent's `out` is never alone.
    let is_an_agents = |program: &ProgramInfo| {
        HookPoint::of_program(&name_of(program)).is_some_and(|point| !point.is_egress())
    };
    if !other_agents.is_empty() || others.iter().any(is_an_agents) {
        return Ok(Finding::error(
            &check,
            "another agent's programs are on it: packets would be translated twice",
            "One agent serves a device: end the other one and run `millrace cleanup` with its \
             --pin-path, or take the device from one of them",
        ));
    }
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(name_of).collect();
        return Ok(Finding::warning(
            &check,
            format!("tc programs of other software are attached: {}", names.join(", ")),
            "Make sure that they do not change packets of Services",
        ));
    }
    Ok(Finding::ok(&check, "no programs of other software"))
}

/// The programs of the pinned links.
fn our_programs(pin_path: &Path) -> Result<BTreeSet<u32>> {
    read_pinned_links(pin_path)?.iter().map(|(_, link)| Ok(link.program()?)).collect()
}

/// The XDP program of an interface, in any mode.
fn xdp_program(device: u32) -> Result<Option<u32>> {
    /// `struct ifinfomsg`; its second word is the index.
    const HEADER: usize = 16;
    const XDP: u16 = 43;
    const PROGRAM: u16 = 4;
    const MASK: u16 = 0x3fff;
    let mut found = None;
    Netlink::open(SockProtocol::NetlinkRoute)?
        .ask(RTM_GETLINK, NLM_F_DUMP, &[0; HEADER], |body| {
            if read_u32_at(body, 4) != Some(device) {
                return;
            }
            let all = read_attributes(body.get(HEADER..).unwrap_or_default());
            let xdp = all.filter(|(kind, _)| kind & MASK == XDP);
            for (_, value) in
                xdp.flat_map(|(_, value)| read_attributes(value)).filter(|a| a.0 == PROGRAM)
            {
                found = read_u32_at(value, 0);
            }
        })
        .context("the kernel does not list its interfaces")?;
    Ok(found)
}

fn called(program: u32) -> String {
    let known = loaded_programs().filter_map(Result::ok).find(|known| known.id() == program);
    known.map_or_else(|| "without a name".to_owned(), |known| name_of(&known))
}

fn name_of(program: &ProgramInfo) -> String {
    String::from_utf8_lossy(program.name()).into_owned()
}
