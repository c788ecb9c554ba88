//! What `millrace check` says about BGP and BFD: as the running agent sees them.

use lb_inspect::{trouble_of_path, trouble_of_peer};
use lb_kernel::Finding;
use lb_speakers::bfd::BfdView;
use lb_speakers::bgp::{BgpView, PeerView};
use lb_status::AgentReport;

pub fn check_sessions(report: &AgentReport) -> Vec<Finding> {
    let AgentReport { bgp, bgp_problems, .. } = report;
    let peers = bgp.peers.iter().map(|peer| of_peer(peer, bgp));
    let paths = bgp.bfd.iter().map(of_path);
    let problems = bgp_problems.iter().map(|problem| {
        let fix = if problem.contains("password") {
            "Add the key to the Secret, or remove passwordKey from the peer"
        } else {
            "Correct the object: docs/bgp.md describes its fields"
        };
        Finding::warning("BGP", problem.clone(), fix)
    });
    let mut findings: Vec<Finding> = peers.chain(paths).chain(problems).collect();
    if bgp.peers.is_empty() && !report.bgp_peers_of_others.is_empty() {
        let names = report.bgp_peers_of_others.join(", ");
        findings.push(Finding::warning(
            "BGP",
            format!("this node has no peers: no nodeSelector of {names} selects it"),
            "Compare the nodeSelectors of the peers with the labels of this node",
        ));
    }
    findings
}

fn of_peer(peer: &PeerView, bgp: &BgpView) -> Finding {
    let check = format!("BGP {}", peer.name);
    match trouble_of_peer(peer) {
        Some(trouble) => Finding::warning(
            &check,
            trouble,
            "Check the peer's address, AS number and password on both sides, and TCP port 179",
        ),
        None if peer.prefixes_advertised == 0 && !bgp.routes.is_empty() => Finding::warning(
            &check,
            "established, but no advertisement of a pool is for this peer",
            "Add the peer to an advertisement of the AddressPool",
        ),
        None => {
            let families = peer.families.join(" and ");
            let prefixes = peer.prefixes_advertised;
            Finding::ok(&check, format!("established, {families}, {prefixes} prefixes"))
        }
    }
}

fn of_path(session: &BfdView) -> Finding {
    let check = format!("BFD {}", session.name);
    match trouble_of_path(session) {
        Some(trouble) => Finding::warning(
            &check,
            trouble,
            "Check that the router runs BFD for this node, and that UDP ports 3784 and 4784 are open",
        ),
        None => {
            let by = if session.in_kernel { "the kernel" } else { "the agent" };
            Finding::ok(&check, format!("up, answered by {by}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use lb_kernel::CheckResult;
    use lb_speakers::bgp::RouteView;

    use super::*;

    fn peer(name: &str, state: &str, prefixes_advertised: usize) -> PeerView {
        let (name, state, since) = (name.into(), state.into(), Timestamp::now());
        PeerView { name, state, since, prefixes_advertised, ..PeerView::default() }
    }

    fn results(report: &AgentReport) -> Vec<(CheckResult, String)> {
        let findings = check_sessions(report);
        assert!(findings.iter().all(|it| it.fix.is_empty() == (it.result == CheckResult::Ok)));
        findings
            .into_iter()
            .map(|it| (it.result, format!("{}: {}", it.check, it.message)))
            .collect()
    }

    #[test]
    fn each_peer_and_each_problem_is_a_line() {
        let mut report = AgentReport::default();
        assert!(results(&report).is_empty());
        let mut down = peer("far", "Active", 0);
        down.last_failure = Some("Connection refused".into());
        report.bgp.peers =
            vec![peer("near", "Established", 1), down, peer("new", "Established", 0)];
        report.bgp.routes = vec![RouteView {
            prefix: "192.0.2.9/32".parse().unwrap(),
            local_preference: None,
            communities: Vec::new(),
            peers: ["near".to_owned()].into(),
        }];
        report.bgp_problems = vec!["BGPPeer a: spec.passwordKey: the password is missing".into()];
        report.bgp_peers_of_others = vec!["elsewhere".into()];
        let found = results(&report);
        let expected = [
            (CheckResult::Ok, "BGP near: established"),
            (CheckResult::Warning, "BGP far: no BGP session with far: Connection refused"),
            (CheckResult::Warning, "BGP new: established, but no advertisement"),
            (CheckResult::Warning, "BGP: BGPPeer a: spec.passwordKey"),
        ];
        assert_eq!(found.len(), expected.len());
        for ((result, text), (wanted, start)) in found.iter().zip(expected) {
            assert!(*result == wanted && text.starts_with(start), "{found:?}");
        }
        report.bgp.peers.clear();
        report.bgp_problems.clear();
        let found = results(&report);
        assert!(found[0].1.contains("no nodeSelector of elsewhere"), "{found:?}");
    }

    #[test]
    fn a_path_is_watched_or_not() {
        let mut report = AgentReport::default();
        let session = |state: &str| BfdView {
            name: "tor".into(),
            state: state.into(),
            in_kernel: true,
            ..BfdView::default()
        };
        report.bgp.bfd = vec![session("up"), session("down")];
        let found = results(&report);
        assert_eq!(found[0], (CheckResult::Ok, "BFD tor: up, answered by the kernel".to_owned()));
        assert_eq!(found[1].0, CheckResult::Warning);
    }
}
