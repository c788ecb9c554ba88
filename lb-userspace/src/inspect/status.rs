//! The state of a data plane and its agent, as `millrace status` shows it, and whether it is
//! healthy.

use std::collections::BTreeMap;

use lb_common::layout::map;
use serde::Serialize;

use crate::announce::LinkView;
use crate::bfd::BfdView;
use crate::bgp::PeerView as BgpPeer;
use crate::kernel::{Features, Survey};
use crate::serve::Report;

/// The whole status.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Whether there are no faults.
    pub healthy: bool,
    pub agent: Agent,
    pub pins: Pins,
    pub kernel: Kernel,
    pub devices: Vec<Device>,
    /// Number of attached programs for processes of the node.
    pub process_programs: usize,
    pub maps: Vec<Fill>,
    pub problems: Vec<Trouble>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    pub running: bool,
    /// The process that holds the lock on the pins, by its id in this namespace.
    pub process: Option<u32>,
    /// The agent's own report; `null` if it is not available here.
    pub report: Option<Report>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pins {
    pub path: String,
    pub maps: usize,
    pub missing_maps: Vec<String>,
    pub attachments: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kernel {
    pub version: String,
    pub btf: bool,
    pub tcx: bool,
    pub jit: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    pub name: String,
    /// How programs are attached: `native XDP`, `tcx egress`, …
    pub hooks: Vec<String>,
}

/// The fill level of a map.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fill {
    pub map: String,
    pub used: u64,
    pub capacity: u64,
    pub percent: f64,
}

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    pub severity: Severity,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// The node does not work as it should.
    Fault,
    /// Something needs to be fixed, on the node or in an object; the rest works.
    Warning,
}

/// Fill level of a warning, in percent.
const NEARLY_FULL: f64 = 90.0;

/// What was found about a data plane.
pub struct Found {
    pub pin_path: String,
    pub survey: Survey,
    pub features: Features,
    /// Used entries by map.
    pub used: BTreeMap<&'static str, u64>,
    /// The agent's report, an error, or `None` if no agent responds.
    pub report: Result<Option<Report>, String>,
}

impl Status {
    pub fn of(found: Found) -> Self {
        let Found { pin_path, survey, features, used, report } = found;
        let mut problems = Vec::new();
        let fault = |message: String| Trouble { severity: Severity::Fault, message };
        let warning = |message: String| Trouble { severity: Severity::Warning, message };

        let missing: Vec<String> = survey
            .maps
            .iter()
            .filter(|map| map.capacity.is_none())
            .map(|map| map.name.to_owned())
            .collect();
        // Maps that older agents did not create are needed only for display.
        let (added, lost): (Vec<&String>, Vec<&String>) =
            missing.iter().partition(|name| *name == map::SERVICE_NAMES);
        if !lost.is_empty() {
            problems.push(fault(format!(
                "{} maps are not pinned; a restart of the agent makes new ones",
                lost.len()
            )));
        }
        if !added.is_empty() {
            problems.push(warning(
                "Services have no names in the maps until a newer agent has started".to_owned(),
            ));
        }
        if survey.attachments.iter().all(|attachment| !attachment.is_attached) {
            problems.push(fault("no program is attached to any device".to_owned()));
        }
        for gone in survey.attachments.iter().filter(|attachment| !attachment.is_attached) {
            let message =
                format!("{} is pinned for {}, and is not attached", gone.hook, gone.device);
            problems.push(warning(message));
        }
        let (attached, all) = survey.processes;
        if attached < all {
            problems.push(warning(format!(
                "{attached} of {all} programs are attached for processes of this node: they may \
                 not reach Services"
            )));
        }
        let maps = fills(&survey, &used);
        for fill in maps.iter().filter(|fill| fill.percent >= NEARLY_FULL) {
            let message = format!("{} is {:.0}% full", fill.map, fill.percent);
            problems.push(if fill.used >= fill.capacity {
                fault(message)
            } else {
                warning(message)
            });
        }
        if !features.jit {
            problems.push(warning(
                "the kernel interprets BPF programs, which is slow: \
                 sysctl net.core.bpf_jit_enable=1"
                    .to_owned(),
            ));
        }
        problems.extend(troubles_of_agent(&survey, &report));
        problems.sort_by_key(|trouble| trouble.severity);

        let report = report.ok().flatten();
        Self {
            healthy: problems.iter().all(|trouble| trouble.severity != Severity::Fault),
            agent: Agent {
                running: survey.holder.is_some() || report.is_some(),
                process: survey.holder.or(report.as_ref().map(|report| report.process)),
                report,
            },
            pins: Pins {
                path: pin_path,
                maps: survey.maps.len() - missing.len(),
                missing_maps: missing,
                attachments: survey.attachments.len() + attached,
            },
            kernel: Kernel {
                version: features.version,
                btf: features.btf,
                tcx: features.tcx,
                jit: features.jit,
            },
            devices: devices(&survey),
            process_programs: attached,
            maps,
            problems,
        }
    }
}

fn troubles_of_agent(survey: &Survey, report: &Result<Option<Report>, String>) -> Vec<Trouble> {
    let fault = |message: String| Trouble { severity: Severity::Fault, message };
    let warning = |message: String| Trouble { severity: Severity::Warning, message };
    let report = match (report, survey.holder) {
        (Ok(Some(report)), _) => report,
        (Ok(None), None) => {
            let message = "no agent is running: the kernel forwards by what it knows, and nothing \
                           follows the cluster";
            return vec![fault(message.to_owned())];
        }
        (Ok(None), Some(process)) => {
            let message = format!(
                "the agent (process {process}) does not answer in this network namespace: it is \
                 starting, or in another one (nsenter --net -t {process})"
            );
            return vec![fault(message)];
        }
        (Err(error), _) => return vec![fault(format!("the agent can't be asked: {error}"))],
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
        troubles.push(fault(format!("changes wait, and are tried again: {why}")));
    }
    if let Some(why) = &report.network {
        troubles.push(fault(format!(
            "interfaces or addresses of this node are not in the maps; retrying: {why}"
        )));
    }
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
            "more than {} other nodes take part, so that two may announce an address: select fewer \
             by announcements[].nodeSelector of the pools",
            link.peers.len()
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

fn devices(survey: &Survey) -> Vec<Device> {
    let mut hooks: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for attachment in survey.attachments.iter().filter(|attachment| attachment.is_attached) {
        hooks.entry(&attachment.device).or_default().push(attachment.hook.to_string());
    }
    hooks.into_iter().map(|(name, hooks)| Device { name: name.to_owned(), hooks }).collect()
}

/// Fill levels of the maps whose used entries are known. LRU maps are left out: they are normally
/// full.
fn fills(survey: &Survey, used: &BTreeMap<&'static str, u64>) -> Vec<Fill> {
    let fill = |found: &crate::kernel::SurveyedMap| {
        let used = *used.get(found.name)?;
        let entries = u64::from(found.capacity?);
        let capacity = match found.name {
            // Elements have two slots; buckets have eight entries.
            map::POOL_SLOTS => entries * 2,
            map::FLOWS4 | map::FLOWS6 => entries * lb_common::layout::BUCKET_ENTRIES as u64,
            _ => entries,
        };
        let percent = used as f64 * 100.0 / capacity.max(1) as f64;
        Some(Fill { map: found.name.to_owned(), used, capacity, percent })
    };
    survey.maps.iter().filter_map(fill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::announce::{AddressView, PeerView};
    use crate::kernel::{Attachment, Hook, SurveyedMap};

    fn found() -> Found {
        let maps = map::ALL.map(|name| SurveyedMap { name, capacity: Some(8) }).into();
        let attachment =
            |hook| Attachment { device: "eth0".into(), hook, is_attached: true, point: None };
        let attachments = vec![attachment(Hook::XdpNative), attachment(Hook::TcxEgress)];
        let survey = Survey { maps, attachments, processes: (9, 9), holder: Some(42) };
        let report = Report { healthz: true, livez: true, ..Report::default() };
        Found {
            pin_path: "/sys/fs/bpf/millrace".into(),
            survey,
            features: Features { version: "6.18.0".into(), btf: true, tcx: true, jit: true },
            used: BTreeMap::from([(map::PEERS, 2), (map::POOL_SLOTS, 4), (map::FLOWS4, 16)]),
            report: Ok(Some(report)),
        }
    }

    /// The faults and warnings, after something was changed.
    fn troubles(change: impl FnOnce(&mut Found)) -> (usize, usize, String) {
        let mut found = found();
        change(&mut found);
        let status = Status::of(found);
        let count = |severity| status.problems.iter().filter(|t| t.severity == severity).count();
        let (faults, warnings) = (count(Severity::Fault), count(Severity::Warning));
        assert_eq!(status.healthy, faults == 0);
        let texts: Vec<_> = status.problems.iter().map(|trouble| trouble.message.clone()).collect();
        (faults, warnings, texts.join("; "))
    }

    fn report(found: &mut Found) -> &mut Report {
        found.report.as_mut().unwrap().as_mut().unwrap()
    }

    #[test]
    fn what_is_as_it_should_be_is_healthy() {
        assert_eq!(troubles(|_| ()), (0, 0, String::new()));
        let status = Status::of(found());
        assert_eq!(status.devices[0].hooks, ["native XDP", "tcx egress"]);
        assert_eq!((status.agent.process, status.pins.maps), (Some(42), map::ALL.len()));
        let percent: Vec<(&str, f64)> =
            status.maps.iter().map(|fill| (fill.map.as_str(), fill.percent)).collect();
        assert!(percent.contains(&("POOL_SLOTS", 25.0)) && percent.contains(&("FLOWS4", 25.0)));
        assert!(percent.contains(&("PEERS", 25.0)), "{percent:?}");
    }

    #[test]
    fn an_agent_that_is_down_or_does_not_respond_is_a_fault() {
        let (faults, _, text) = troubles(|found| {
            found.report = Ok(None);
            found.survey.holder = None;
        });
        assert_eq!(faults, 1);
        assert!(text.contains("no agent is running"), "{text}");
        let (faults, _, text) = troubles(|found| found.report = Ok(None));
        assert_eq!(faults, 1);
        assert!(text.contains("process 42") && text.contains("does not answer"), "{text}");
        assert_eq!(troubles(|found| found.report = Err("refused".into())).0, 1);
    }

    #[test]
    fn the_agents_report_is_shown() {
        assert_eq!(troubles(|found| report(found).livez = false).0, 1);
        assert_eq!(troubles(|found| report(found).healthz = false).0, 1);
        assert_eq!(troubles(|found| report(found).waiting = Some("no memory".into())).0, 1);
        let full = |found: &mut Found| report(found).without_room = [("MEMBERS".into(), 3)].into();
        assert_eq!(troubles(full).2, "MEMBERS has no room for 3 entries");
        let wrong = |found: &mut Found| report(found).problems.push("Service a/b: wrong".into());
        assert_eq!(troubles(wrong), (0, 1, "Service a/b: wrong".to_owned()));
    }

    #[test]
    fn announcements_that_do_not_work_are_warnings() {
        let link = || LinkView { interface: "eth0".into(), ..LinkView::default() };
        let with = |link: LinkView| troubles(|found| report(found).announcements = vec![link]);
        assert_eq!(with(link()).1, 0);
        let address = |blocked, candidates| AddressView {
            address: "192.0.2.1".parse().unwrap(),
            services: Vec::new(),
            holder: None,
            epoch: None,
            held_seconds: None,
            blocked,
            candidates,
            why_not_here: Some("why".into()),
        };
        let peer = |deaf| PeerView {
            node: "b".into(),
            interface: "eth0".into(),
            silent: false,
            deaf,
            holds: 0,
        };
        for (changed, text) in [
            (LinkView { addresses: vec![address(false, true)], ..link() }, "no node announces 1"),
            (LinkView { addresses: vec![address(true, false)], ..link() }, "uses 192.0.2.1"),
            (LinkView { peers: vec![peer(false)], ..link() }, "set tunnel-key-file"),
            (LinkView { crowded: true, ..link() }, "two may announce an address"),
            (
                LinkView { peers: vec![peer(true)], authenticated: true, ..link() },
                "b do not hear this node",
            ),
        ] {
            let (faults, warnings, found) = with(changed);
            assert!(faults == 0 && warnings == 1 && found.contains(text), "{found}");
        }
        assert_eq!(with(LinkView { addresses: vec![address(false, false)], ..link() }).1, 0);
    }

    #[test]
    fn peers_without_a_session_are_warnings() {
        let peer = |state: &str| BgpPeer {
            name: "tor".into(),
            state: state.into(),
            last_failure: Some("hold timer expired".into()),
            ..BgpPeer::default()
        };
        let with = |peer: BgpPeer| troubles(|found| report(found).bgp.peers = vec![peer]);
        assert_eq!(with(peer("Established")).1, 0);
        let (faults, warnings, text) = with(peer("Active"));
        assert_eq!((faults, warnings), (0, 1));
        assert!(text.contains("no BGP session with tor: hold timer expired"), "{text}");
    }

    #[test]
    fn paths_that_are_not_up_are_warnings() {
        let with = |change: fn(&mut BfdView)| {
            let mut session =
                BfdView { name: "tor".into(), state: "up".into(), ..BfdView::default() };
            change(&mut session);
            let (faults, _, text) = troubles(|found| report(found).bgp.bfd = vec![session]);
            assert_eq!(faults, 0);
            text
        };
        assert!(!with(|_| ()).contains("BFD"));
        assert!(with(|it| it.state = "down".into()).contains("is BFD configured there?"));
        let down = with(|it| {
            it.state = "down".into();
            it.packets_received = 1;
            it.diagnostic = "detection time expired".into();
        });
        assert!(
            down.contains("the BFD session with tor is down: detection time expired"),
            "{down}"
        );
        assert!(with(|it| it.problem = Some("port in use".into())).contains("tor: port in use"));
    }

    #[test]
    fn faults_are_sorted_by_severity() {
        let lost = |name: &'static str| {
            move |found: &mut Found| {
                let map = found.survey.maps.iter_mut().find(|map| map.name == name);
                map.unwrap().capacity = None;
            }
        };
        assert_eq!(troubles(lost(map::POOLS)).0, 1);
        let (faults, warnings, _) = troubles(lost(map::SERVICE_NAMES));
        assert_eq!((faults, warnings), (0, 1), "an older agent's maps serve as well");
        let gone = |found: &mut Found| found.survey.attachments[0].is_attached = false;
        assert_eq!(troubles(gone).1, 1);
        let all_gone = |found: &mut Found| {
            found.survey.attachments.iter_mut().for_each(|a| a.is_attached = false)
        };
        let (faults, warnings, text) = troubles(all_gone);
        assert_eq!((faults, warnings), (1, 2));
        assert!(text.starts_with("no program is attached"), "{text}");
        let (faults, warnings, text) =
            troubles(|found| found.used = [(map::PEERS, 8), (map::FLOWS6, 60)].into());
        assert_eq!((faults, warnings), (1, 1), "{text}");
    }
}
