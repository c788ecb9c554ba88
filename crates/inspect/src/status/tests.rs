use lb_announce::{AddressView, LinkView, PeerView};
use lb_kernel::{Attachment, Hook, SurveyedMap};
use lb_speakers::bfd::BfdView;
use lb_speakers::bgp::PeerView as BgpPeer;
use lb_waits::{LongWait, Resource};

use super::*;

fn found() -> StatusFindings {
    let maps = map::ALL.map(|name| SurveyedMap { name, capacity: Some(8) }).into();
    let attachment =
        |hook| Attachment { device: "eth0".into(), hook, is_attached: true, point: None };
    let attachments = vec![attachment(Hook::XdpNative), attachment(Hook::TcxEgress)];
    let survey = Survey { maps, attachments, processes: (9, 9), holder: Some(42) };
    let report = AgentReport { healthz: true, livez: true, ..AgentReport::default() };
    StatusFindings {
        pin_path: "/sys/fs/bpf/millrace".into(),
        survey,
        features: Features { version: "6.18.0".into(), btf: true, tcx: true, jit: true },
        used: BTreeMap::from([(map::PEERS, 2), (map::POOL_SLOTS, 4), (map::FLOWS4, 16)]),
        report: Ok(Some(report)),
    }
}

/// The faults and warnings, after something was changed.
fn troubles(change: impl FnOnce(&mut StatusFindings)) -> (usize, usize, String) {
    let mut found = found();
    change(&mut found);
    let status = Status::of(found);
    let count = |severity| status.problems.iter().filter(|t| t.severity == severity).count();
    let (faults, warnings) = (count(Severity::Fault), count(Severity::Warning));
    assert_eq!(status.healthy, faults == 0);
    let texts: Vec<_> = status.problems.iter().map(|trouble| trouble.message.clone()).collect();
    (faults, warnings, texts.join("; "))
}

fn report(found: &mut StatusFindings) -> &mut AgentReport {
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
    let full =
        |found: &mut StatusFindings| report(found).without_room = [("MEMBERS".into(), 3)].into();
    assert_eq!(troubles(full).2, "MEMBERS has no room for 3 entries");
    let wrong =
        |found: &mut StatusFindings| report(found).problems.push("Service a/b: wrong".into());
    assert_eq!(troubles(wrong), (0, 1, "Service a/b: wrong".to_owned()));
    let wait = |resource| LongWait {
        resource,
        subject: "list of Node objects".to_owned(),
        reason: "no response within 60 s".to_owned(),
        seconds: 70,
    };
    let waits = |found: &mut StatusFindings| {
        report(found).waits = vec![wait(Resource::ApiServer), wait(Resource::Neighbour)];
    };
    let expected = "waiting for list of Node objects for 70 s: no response within 60 s";
    assert_eq!(troubles(waits), (0, 1, expected.to_owned()));
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
        (LinkView { beyond: 3, ..link() }, "no node announces 3 addresses: a link can have"),
        (
            LinkView { same_name: Some([2, 0, 0, 0, 0, 7]), ..link() },
            "the machine 02:00:00:00:00:07 announces under this node's name",
        ),
        (LinkView { crowded: true, ..link() }, "more nodes would announce addresses"),
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
        let mut session = BfdView { name: "tor".into(), state: "up".into(), ..BfdView::default() };
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
    assert!(down.contains("the BFD session with tor is down: detection time expired"), "{down}");
    assert!(with(|it| it.problem = Some("port in use".into())).contains("tor: port in use"));
}

#[test]
fn faults_are_sorted_by_severity() {
    let lost = |name: &'static str| {
        move |found: &mut StatusFindings| {
            let map = found.survey.maps.iter_mut().find(|map| map.name == name);
            map.unwrap().capacity = None;
        }
    };
    assert_eq!(troubles(lost(map::POOLS)).0, 1);
    let gone = |found: &mut StatusFindings| found.survey.attachments[0].is_attached = false;
    assert_eq!(troubles(gone).1, 1);
    let all_gone = |found: &mut StatusFindings| {
        found.survey.attachments.iter_mut().for_each(|a| a.is_attached = false)
    };
    let (faults, warnings, text) = troubles(all_gone);
    assert_eq!((faults, warnings), (1, 2));
    assert!(text.starts_with("no program is attached"), "{text}");
    let (faults, warnings, text) =
        troubles(|found| found.used = [(map::PEERS, 8), (map::FLOWS6, 60)].into());
    assert_eq!((faults, warnings), (1, 1), "{text}");
}
