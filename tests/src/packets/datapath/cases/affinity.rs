//! Session affinity.

use std::collections::BTreeSet;

use super::Ends;
use crate::packets::datapath::Conversation;
use crate::packets::tcp;

/// The backend of a new connection from this port to a frontend.
fn dial(c: &mut Conversation, at: &Ends, port: u16, frontend: &str) -> String {
    let backends = at.backends(5);
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let request = tcp(at.client(port).as_str(), frontend).syn();
    c.forward(&request).chosen(&backends, |backend| request.to(backend)).to_owned()
}

pub fn a_client_stays_with_its_backend_whatever_it_dials(c: &mut Conversation, at: &Ends) {
    c.node_addresses(&[at.node]);
    let web = at.web(5).load_balancer(&at.load_balancer(443)).node_port(30080);
    c.set(&web.affinity(3600));
    let frontends = [at.cluster(80), at.load_balancer(443), at.end(at.node, 30080)];
    let chosen: BTreeSet<String> = (0..24)
        .map(|number| dial(c, at, 40000 + number, &frontends[usize::from(number) % 3]))
        .collect();
    assert_eq!(chosen.len(), 1, "{chosen:?}");
}

pub fn it_stays_while_others_come_and_go(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(3).affinity(3600));
    let chosen = dial(c, at, 40000, &at.cluster(80));
    let others: Vec<String> = at.backends(5).into_iter().filter(|b| *b != chosen).collect();
    for others in [&others[..1], &others[1..4], &others[..0]] {
        let members: Vec<&str> = others.iter().chain([&chosen]).map(String::as_str).collect();
        c.set(&at.web(0).backends(&members).affinity(3600));
        for port in 40001..40008 {
            assert_eq!(dial(c, at, port, &at.cluster(80)), chosen);
        }
    }
    // It gets another backend at once, and stays with that.
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    c.set(&at.web(0).backends(&others).affinity(3600));
    let next = dial(c, at, 41000, &at.cluster(80));
    assert_ne!(next, chosen);
    c.set(&at.web(5).affinity(3600));
    for port in 41001..41008 {
        assert_eq!(dial(c, at, port, &at.cluster(80)), next);
    }
}

pub fn affinity_is_switched_for_new_connections_at_once(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(5));
    let spread: BTreeSet<String> =
        (0..40).map(|n| dial(c, at, 40000 + n, &at.cluster(80))).collect();
    assert!(spread.len() > 1);
    c.set(&at.web(5).affinity(3600));
    let one: BTreeSet<String> = (0..20).map(|n| dial(c, at, 41000 + n, &at.cluster(80))).collect();
    assert_eq!(one.len(), 1);
    c.set(&at.web(5));
    let spread: BTreeSet<String> =
        (0..40).map(|n| dial(c, at, 42000 + n, &at.cluster(80))).collect();
    assert!(spread.len() > 1);
}

const TIMEOUT: u32 = 10_800;
/// Longer than a test takes, because the kernel's clock continues.
const MARGIN: u32 = 60;

/// Two ports from which a client without affinity would get different backends. The client stays with
/// that of the first port.
fn stay(c: &mut Conversation, at: &Ends) -> (u16, u16) {
    c.set(&at.web(5));
    let chosen: Vec<String> = (40000..40008)
        .map(|port| {
            let chosen = dial(c, at, port, &at.cluster(80));
            c.forward(&at.to_web(port).rst()).assert_passed();
            chosen
        })
        .collect();
    let other = chosen.iter().position(|backend| *backend != chosen[0]).expect("five backends");
    c.set(&at.web(5).affinity(TIMEOUT.into()));
    assert_eq!(dial(c, at, 40000, &at.cluster(80)), chosen[0]);
    (40000, 40000 + other as u16)
}

/// The backend of a new connection from a port that may have been used before.
fn dial_anew(c: &mut Conversation, at: &Ends, port: u16) -> String {
    let _ = c.forward(&at.to_web(port).rst());
    dial(c, at, port, &at.cluster(80))
}

pub fn affinity_ends_when_no_connection_was_opened_for_its_time(c: &mut Conversation, at: &Ends) {
    let (first, other) = stay(c, at);
    let chosen = dial_anew(c, at, first);
    let reply = at.to_web(first).reversed().syn_ack();
    c.reply_from(&chosen, &reply);
    c.forward(&at.to_web(first).ack()).assert_passed();
    c.wait(TIMEOUT - MARGIN);
    // Packets of an existing connection do not renew the affinity.
    c.forward(&at.to_web(first).ack()).assert_passed();
    c.wait(2 * MARGIN);
    assert_ne!(dial(c, at, other, &at.cluster(80)), chosen);
}

pub fn each_new_connection_prolongs_affinity(c: &mut Conversation, at: &Ends) {
    let (first, other) = stay(c, at);
    let chosen = dial_anew(c, at, first);
    for port in [other, first, other] {
        c.wait(TIMEOUT - MARGIN);
        assert_eq!(dial_anew(c, at, port), chosen);
    }
}

/// One frontend restricts a client to backends of this node, the other does not: affinity selects only
/// an allowed backend.
pub fn affinity_selects_only_backends_that_the_policy_allows(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(5);
    c.set(&at.web(5));
    let port = (40000..)
        .find(|&port| {
            let chosen = dial(c, at, port, &at.cluster(80));
            let _ = c.forward(&at.to_web(port).rst());
            chosen != backends[1]
        })
        .expect("four of five backends are others");
    let web = at.web(5).load_balancer(&at.load_balancer(443)).external_local();
    c.set(&web.local_backends(&[&backends[1]]).affinity(3600));
    let anywhere = dial_anew(c, at, port);
    assert_ne!(anywhere, backends[1]);
    let here = dial(c, at, port, &at.load_balancer(443));
    assert_eq!(here, backends[1]);
    // This was the client's last backend.
    assert_eq!(dial(c, at, port + 1, &at.cluster(80)), here);
}

pub fn datagrams_stay_too(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(5);
    let ends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let ask = |c: &mut Conversation, port| {
        let question = at.to_dns(port);
        c.forward(&question).chosen(&ends, |backend| question.to(backend)).to_owned()
    };
    c.set(&at.dns(5).affinity(TIMEOUT.into()));
    let first = ask(c, 40000);
    for port in 40001..40012 {
        assert_eq!(ask(c, port), first);
    }
    // Affinity is per client.
    let led: BTreeSet<String> = (1..=5)
        .map(|number| {
            let client = at.end(&format!("{}{number}", at.clients), 40000);
            let question = at.to_dns(40000).from(client.as_str());
            c.forward(&question).chosen(&ends, |backend| question.to(backend)).to_owned()
        })
        .collect();
    assert!(led.len() > 1, "{led:?}");
}
