//! Many Services at the start, which are planned in portions.

use lb_plan::Change;
use lb_rules::model::{AddressFamily, Protocol, ServiceName, ServicePortKey};

use super::*;
use crate::control::planning::{PORTION, Portion};

const SERVICES: usize = PORTION * 5 / 2;

fn address(number: usize) -> String {
    format!("10.96.{}.{}", number / 250, number % 250 + 1)
}

/// An agent that has read many Services, and planned nothing.
fn started() -> Case {
    let mut case = Case::new();
    for number in 0..SERVICES {
        let event = applied(service(&format!("service-{number}"), &address(number)));
        drop(case.agent.store_event(event));
    }
    case
}

#[test]
fn a_write_that_fails_during_the_start_delays_the_rest() {
    let mut whole = started();
    whole.agent.program_changes(Affected::All);
    let writes = whole.memory.writes();
    let mut case = started();
    // After the first portion, during the second.
    case.memory.break_after(Some(writes * 3 / 5));
    case.agent.program_changes(Affected::All);
    let programmed = case.memory.led_to().len();
    assert!((PORTION..PORTION * 2).contains(&programmed), "{programmed}");
    assert!(case.agent.retry_at().is_some());
    // Changes meanwhile: of a Service that was written, one that was not, and a new one.
    for (name, number) in [("service-0", 0), ("service-999", 999), ("new", SERVICES)] {
        case.service(name, &address(number));
        case.endpoints(name, &["10.244.0.1"]);
    }
    case.memory.break_after(None);
    case.agent.retry();
    assert_eq!(case.agent.retry_at(), None);
    let led_to = case.memory.led_to();
    assert_eq!(led_to.len(), SERVICES + 1);
    for number in 0..=SERVICES {
        let has_endpoint = [0, 999, SERVICES].contains(&number);
        assert_eq!(led_to[&address(number)].len(), usize::from(has_endpoint), "{number}");
    }
    assert!(case.is_healthy());
}

/// Service ports by Service, and Services without any.
fn portion(services: &[(&str, usize)]) -> Portion {
    let mut change = Change { now: 7, ..Change::default() };
    for (name, ports) in services {
        let key = |port: usize| ServicePortKey {
            service: ServiceName::new("default", name),
            port: format!("{port}"),
            protocol: Protocol::Tcp,
            family: AddressFamily::V4,
        };
        change.service_ports.extend((0..*ports).map(|port| (key(port), None)));
    }
    let names = services.iter().map(|(name, _)| ServiceName::new("default", name));
    Portion { concerned: names.collect(), change }
}

#[test]
fn a_service_is_never_split() {
    let services = [("a", 0), ("b", 2), ("c", 2), ("d", 5), ("e", 0), ("f", 1), ("g", 2), ("h", 0)];
    let seen = |most| {
        let portions = portion(&services).split(most).into_iter();
        let shapes = portions.map(|portion| {
            assert_eq!(portion.change.now, 7);
            let names: String = portion.concerned.iter().map(|it| it.name.as_str()).collect();
            for key in portion.change.service_ports.keys() {
                assert!(portion.concerned.contains(&key.service), "{key}");
            }
            (names, portion.change.service_ports.len())
        });
        shapes.collect::<Vec<_>>()
    };
    let shape = |names: &str, ports| (names.to_owned(), ports);
    assert_eq!(seen(3), [shape("abc", 4), shape("de", 5), shape("fgh", 3)]);
    assert_eq!(
        seen(1),
        [shape("ab", 2), shape("c", 2), shape("de", 5), shape("f", 1), shape("gh", 2)]
    );
    assert_eq!(seen(usize::MAX), [shape("abcdefgh", 12)]);
    assert_eq!(portion(&[]).split(1).len(), 1, "other changes are planned, too");
}
