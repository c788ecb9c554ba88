//! Rung 3: the same tables in the kernel, where every answer, the flow entries and the counts
//! must be the host's.

use std::time::{SystemTime, UNIX_EPOCH};

use tests::datapath::cases::Ends;
use tests::datapath::{Conversation, Hook};
use tests::scenario::{self, Event, Sent};

fn run(case: fn(&mut Conversation, &Ends), ends: &Ends) {
    case(&mut both(), ends);
}

tests::every_case!(run);

fn both() -> Conversation {
    Conversation::on_host_and_in_kernel().unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn host_and_kernel_agree_on_a_day_known_to_us() {
    live_through(1);
}

#[test]
fn host_and_kernel_agree_on_a_day_like_no_other() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    live_through(now.as_nanos() as u64);
}

/// The conversation judges: a packet's bytes and verdict, all flow entries, all counts.
fn live_through(seed: u64) {
    println!("the day's seed is {seed}");
    let day = scenario::draw(&scenario::day(5000), seed);
    let mut conversation = both();
    for event in &day {
        match event {
            Event::Packet(sent) if !is_accepted(sent) => {}
            _ => drop(event.happen(&mut conversation)),
        }
    }
}

/// BPF_PROG_TEST_RUN wants an Ethernet header, and before tc the IP header, too.
fn is_accepted(sent: &Sent) -> bool {
    let fewest = match sent.hook {
        Hook::Forward => 14,
        Hook::Workload | Hook::Reverse => 14 + 40,
    };
    sent.packet.len() >= fewest
}
