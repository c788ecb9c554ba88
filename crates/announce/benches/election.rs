//! What an election costs one participant: `cargo bench -p lb-announce`. All participants run here, in simulated
//! time, on a link that loses nothing.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use lb_announce::{
    CandidateRank, ElectionTiming, LinkEffect, LinkElection, LinkInput, ParticipantIdentity,
    SealKeys, Time,
};

/// Between two steps of the simulation: participants are asked for their next timer no more often.
const STEP: Duration = Duration::from_millis(5);

fn main() {
    // `cargo test` does not measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    for (participants, addresses) in [(5, 1_000), (5, 2_000), (32, 2_000)] {
        measure_election(participants, addresses);
    }
}

fn measure_election(participants: usize, addresses: u32) {
    println!("{participants} participants, {addresses} addresses:");
    let mut link = Link::new(participants, addresses);
    link.run(Duration::from_secs(20));
    let held: usize =
        link.elections[0].link_view(link.now).peers.iter().map(|peer| peer.holds).sum();
    assert!(held > 0, "the others hold addresses");

    link.octets = 0;
    let times = link.run(Duration::from_secs(5));
    println!("  {:>9} octets of payload a second on the link", link.octets / 5);
    report("a heartbeat without news", &times.heartbeats);
    report("a timer without news", &times.timers);

    let begun = Instant::now();
    black_box(link.elections[0].link_view(link.now));
    println!("  {:>9.1?} for the view", begun.elapsed());

    let times = link.change_candidacy(address(0), CandidateRank::LastResort);
    report("a timer after another participant's candidacy changed", &times.timers);

    link.elections.truncate(participants - 1);
    let times = link.run(Duration::from_secs(2));
    report("a timer while a participant dies", &times.timers);
}

fn report(what: &str, times: &[Duration]) {
    let mut times = times.to_vec();
    times.sort();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!("  {median:>9.1?} for {what} (median; most {most:.1?})");
}

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from(0xc633_6400 + number).into()
}

/// What the first participant needed.
#[derive(Default)]
struct Times {
    heartbeats: Vec<Duration>,
    timers: Vec<Duration>,
}

struct Link {
    elections: Vec<LinkElection>,
    wanted: BTreeMap<IpAddr, CandidateRank>,
    now: Time,
    /// Of all heartbeats.
    octets: usize,
}

impl Link {
    fn new(participants: usize, addresses: u32) -> Self {
        let now = Time::from_secs(1_000);
        let wanted: BTreeMap<_, _> =
            (0..addresses).map(|number| (address(number), CandidateRank::Candidate)).collect();
        let elections = (0..participants).map(|number| {
            let identity = ParticipantIdentity {
                node: format!("node-{number}"),
                interface: "eth0".to_owned(),
                incarnation: 1,
            };
            let timing = ElectionTiming::default();
            let mut election = LinkElection::new(identity, timing, SealKeys::default(), &[], now);
            let [high, low] = (number as u16).to_be_bytes();
            let link_address = [2, 0, 0, 0, high, low];
            election.handle(LinkInput::Interface { usable: true, link_address }, now);
            election.handle(LinkInput::Wanted(wanted.clone()), now);
            election
        });
        Self { elections: elections.collect(), wanted, now, octets: 0 }
    }

    fn run(&mut self, time: Duration) -> Times {
        let end = self.now + time;
        let mut times = Times::default();
        while self.now < end {
            self.now += STEP;
            for sender in 0..self.elections.len() {
                if self.elections[sender].next_timer() > self.now {
                    continue;
                }
                let begun = Instant::now();
                let effects = self.elections[sender].handle(LinkInput::Timer, self.now);
                if sender == 0 {
                    times.timers.push(begun.elapsed());
                }
                self.deliver(sender, effects, &mut times);
            }
        }
        times
    }

    /// Changes what the second participant can do with an address, until all have heard of it.
    fn change_candidacy(&mut self, address: IpAddr, rank: CandidateRank) -> Times {
        self.wanted.insert(address, rank);
        let mut times = Times::default();
        let effects = self.elections[1].handle(LinkInput::Wanted(self.wanted.clone()), self.now);
        self.deliver(1, effects, &mut times);
        self.run(Duration::from_secs(1))
    }

    fn deliver(&mut self, sender: usize, effects: Vec<LinkEffect>, times: &mut Times) {
        for effect in effects {
            let LinkEffect::Send(heartbeat) = effect else { continue };
            self.octets += heartbeat.len();
            for receiver in (0..self.elections.len()).filter(|receiver| *receiver != sender) {
                let begun = Instant::now();
                let received = LinkInput::Received(&heartbeat);
                // What a participant sends in reply to a heartbeat waits for its timer.
                black_box(self.elections[receiver].handle(received, self.now));
                if receiver == 0 {
                    times.heartbeats.push(begun.elapsed());
                }
            }
        }
    }
}
