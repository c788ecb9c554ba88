//! Terminating or unready backends keep their connections.

use lb_common::layout::Reason;

use super::{Ends, establish};
use crate::packets::datapath::Conversation;

pub fn a_backend_that_ends_keeps_its_connections(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(1));
    let request = at.to_web(40000);
    establish(c, &request, &backends[0]);
    c.set(&at.web(0).backends(&[&backends[1]]).draining(&[&backends[0]]));
    c.forward(&request.ack()).becomes(&request.ack().to(backends[0].as_str()));
    let reply = request.reversed().psh_ack().payload(b"answer");
    c.reverse(&reply.from(backends[0].as_str())).becomes(&reply);
    let newer = at.to_web(40001).syn();
    c.forward(&newer).becomes(&newer.to(backends[1].as_str()));

    // Its endpoint is removed now, so there will be no reply.
    c.set(&at.web(0).backends(&[&backends[1]]));
    let more = request.ack().ack_number(5);
    let reset = more.reversed().rst().seq(5).ack_number(0).window(0).ttl(64).id(0);
    c.forward(&more).is_answered_by(&reset, Reason::BackendGone);
}

pub fn the_last_backend_that_ends_keeps_its_connections(c: &mut Conversation, at: &Ends) {
    let backend = &at.backends(1)[0];
    c.set(&at.web(1));
    let request = at.to_web(40000);
    establish(c, &request, backend);
    c.set(&at.web(0).draining(&[backend]));
    c.request_to(backend, &request.ack());
    let refused = at.to_web(40001).seq(7).syn();
    let reset = refused.reversed().rst_ack().seq(0).ack_number(8).window(0).ttl(64).id(0);
    c.forward(&refused).is_answered_by(&reset, Reason::NoBackend);
    c.set(&at.web(1));
    c.request_to(backend, &request.ack());
}

/// A client that connects again from the same port has a new connection.
pub fn a_new_connection_from_an_old_port_goes_elsewhere(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(1));
    let request = at.to_web(40000);
    establish(c, &request, &backends[0]);
    c.forward(&request.fin_ack()).becomes(&request.fin_ack().to(backends[0].as_str()));
    let end = request.reversed().fin_ack();
    c.reverse(&end.from(backends[0].as_str())).becomes(&end);
    c.set(&at.web(0).backends(&[&backends[1]]).draining(&[&backends[0]]));
    c.forward(&request.syn()).becomes(&request.syn().to(backends[1].as_str()));
}

/// The backend's node may be dead.
pub fn a_syn_without_a_reply_is_repeated_to_another_backend(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(1));
    let [lost, answered] = [40000, 40001].map(|port| at.to_web(port));
    for request in [&lost, &answered] {
        c.request_to(&backends[0], &request.syn());
    }
    c.reply_from(&backends[0], &answered.reversed().syn_ack());
    c.set(&at.web(0).backends(&[&backends[1]]).draining(&[&backends[0]]));
    c.request_to(&backends[1], &lost.syn());
    c.request_to(&backends[0], &answered.syn());
}

pub fn datagrams_leave_a_backend_that_ends(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.dns(1));
    let question = at.to_dns(40000);
    c.forward(&question).becomes(&question.to(backends[0].as_str()));
    c.set(&at.dns(0).backends(&[&backends[1]]).draining(&[&backends[0]]));
    c.forward(&question).becomes(&question.to(backends[1].as_str()));
    let reply = question.reversed().payload(b"answer");
    c.reverse(&reply.from(backends[1].as_str())).becomes(&reply);
}

pub fn affinity_does_not_lead_to_a_backend_that_ends(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    let sticky = |backend: &str| at.web(0).backends(&[backend]).affinity(60);
    c.set(&sticky(&backends[0]));
    let first = at.to_web(40000).syn();
    c.forward(&first).becomes(&first.to(backends[0].as_str()));
    c.set(&sticky(&backends[1]).draining(&[&backends[0]]));
    let second = at.to_web(40001).syn();
    c.forward(&second).becomes(&second.to(backends[1].as_str()));
}
