//! Problems that the agent reports about itself, BGP, BFD and announcements.

use lb_announce::LinkView;
use lb_kernel::Survey;
use lb_speakers::bfd::BfdView;
use lb_speakers::bgp::PeerView as BgpPeer;
use lb_status::AgentReport;
use lb_waits::Resource;

use super::{Severity, Trouble};

pub(crate) fn troubles_of_agent(
    survey: &Survey,
    report: &Result<Option<AgentReport>, String>,
) -> Vec<Trouble> {
    let fault = |message: String| Trouble { severity: Severity::Fault, message };
    let warning = |message: String| Trouble { severity: Severity::Warning, message };
    let report = match (report, survey.holder) {
        (Ok(Some(report)), _) => report,
        (Ok(None), None) => {
            let message = "no agent is running: the kernel forwards by the maps as they are, and changes \
                           of the cluster are not applied";
            return vec![fault(message.to_owned())];
        }
        (Ok(None), Some(process)) => {
            let message = format!(
                "the agent (process {process}) does not answer in this network namespace: it is \
                 starting, or in another one (nsenter --net -t {process})"
            );
            return vec![fault(message)];
        }
        (Err(error), _) => {
            return vec![fault(format!("the agent's report can't be read: {error}"))];
        }
    };
    let mut troubles = Vec::new();
    if !report.livez {
        troubles
            .push(fault("changes have been waiting for too long (/livez returns 503)".to_owned()));
    } else if !report.healthz {
        troubles
            .push(fault("this node should receive no traffic (/healthz returns 503)".to_owned()));
    }
    if let Some(why) = &report.waiting {
        troubles.push(fault(format!("changes could not be applied; retrying: {why}")));
    }
    if let Some(why) = &report.network {
        troubles.push(fault(format!(
            "interfaces or addresses of this node are not in the maps; retrying: {why}"
        )));
    }
    // Neighbours and interfaces have lines of their own, which say more.
    let own = [Resource::Neighbour, Resource::Device];
    let waits = report.waits.iter().filter(|wait| !own.contains(&wait.resource));
    troubles.extend(waits.map(|wait| warning(wait.to_string())));
    for (map, count) in &report.without_room {
        troubles.push(fault(format!("{map} has no room for {count} entries")));
    }
    troubles.extend(report.announcements.iter().flat_map(troubles_of_announcements).map(warning));
    troubles.extend(report.bgp.peers.iter().filter_map(trouble_of_peer).map(warning));
    troubles.extend(report.bgp.bfd.iter().filter_map(trouble_of_path).map(warning));
    troubles.extend(report.bgp_problems.iter().map(|problem| warning(problem.clone())));
    troubles.extend(report.devices.values().map(|why| warning(why.clone())));
    troubles.extend(report.problems.iter().map(|problem| warning(problem.clone())));
    troubles
}

pub fn trouble_of_peer(peer: &BgpPeer) -> Option<String> {
    let why = peer.last_failure.as_deref().unwrap_or("not yet tried");
    (!peer.is_established()).then(|| format!("no BGP session with {}: {why}", peer.name))
}

pub fn trouble_of_path(session: &BfdView) -> Option<String> {
    let BfdView { name, diagnostic, .. } = session;
    match &session.problem {
        Some(problem) => Some(format!("no BFD session with {name}: {problem}")),
        None if session.is_up() => None,
        None if session.packets_received == 0 => Some(format!(
            "no BFD session with {name}: it sends no packets; is BFD configured there?"
        )),
        None => Some(format!("the BFD session with {name} is down: {diagnostic}")),
    }
}

fn troubles_of_announcements(link: &LinkView) -> Vec<String> {
    let interface = &link.interface;
    let mut troubles = Vec::new();
    let mut complain = |number: usize, what: String| {
        if number > 0 {
            troubles.push(format!("{interface}: {what}"));
        }
    };
    let missing = link.addresses.iter().filter(|address| address.is_missing()).count();
    complain(
        missing,
        format!("no node announces {missing} addresses: millrace announcements -o wide says why"),
    );
    let blocked: Vec<String> = link
        .addresses
        .iter()
        .filter(|address| address.blocked)
        .map(|address| address.address.to_string())
        .collect();
    complain(
        blocked.len(),
        format!("another machine uses {}: remove it there, or from the pool", blocked.join(", ")),
    );
    let deaf: Vec<&str> = link
        .peers
        .iter()
        .filter(|peer| peer.deaf && !peer.silent)
        .map(|peer| peer.node.as_str())
        .collect();
    complain(
        deaf.len(),
        format!("{} do not hear this node: allow UDP port 10245 there", deaf.join(", ")),
    );
    complain(
        usize::from(link.crowded),
        format!(
            "more nodes would announce addresses than the {} that can: select fewer by \
             announcements[].nodeSelector of the pools",
            link.peers.len()
        ),
    );
    let most = lb_announce::MAX_ADDRESSES;
    complain(
        link.beyond,
        format!(
            "no node announces {} addresses: a link can have {most}; distribute the pools over \
             several interfaces, or use BGP",
            link.beyond
        ),
    );
    let same_name = link.same_name.map(lb_announce::format_link_address);
    complain(
        usize::from(same_name.is_some()),
        format!(
            "the machine {} announces under this node's name, so addresses have two holders: give \
             all nodes different names",
            same_name.unwrap_or_default()
        ),
    );
    let open = !link.authenticated && !link.peers.is_empty();
    complain(
        usize::from(open),
        "any machine on the link can take part in announcing addresses: set tunnel-key-file"
            .to_owned(),
    );
    troubles
}
