use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn config(transmit: u64, receive: u64) -> BfdConfig {
    BfdConfig {
        transmit: MS * transmit as u32,
        receive: MS * receive as u32,
        ..BfdConfig::default()
    }
}

/// A session, and the program in the kernel of its node.
struct Node {
    session: BfdStateMachine,
    kernel: Option<Reflection>,
    /// When the kernel answered last.
    reflected: Option<Duration>,
    can_reflect: bool,
    changes: Vec<(Duration, StateChange)>,
}

impl Node {
    fn new(config: BfdConfig, discriminator: u32, can_reflect: bool) -> Self {
        let session =
            BfdStateMachine::new(config, discriminator, discriminator.into(), Duration::ZERO);
        Self { session, kernel: None, reflected: None, can_reflect, changes: Vec::new() }
    }

    fn perform(&mut self, now: Duration, effects: Vec<BfdEffect>) -> Vec<ControlPacket> {
        let mut sent = Vec::new();
        for effect in effects {
            match effect {
                BfdEffect::Send(packet) => sent.push(packet),
                BfdEffect::Changed(change) => self.changes.push((now, change)),
                BfdEffect::Reflect(reflection) => self.kernel = Some(reflection),
                BfdEffect::StopReflecting => (self.kernel, self.reflected) = (None, None),
            }
        }
        sent
    }

    fn receive(&mut self, now: Duration, packet: ControlPacket) -> Vec<ControlPacket> {
        let plain = ControlPacket { poll: false, ..packet };
        match self.kernel {
            Some(kernel) if self.can_reflect && plain.encode() == kernel.expected => {
                self.reflected = Some(now);
                let answer = ControlPacket::decode(&kernel.answer).unwrap();
                vec![ControlPacket { is_final: packet.poll, ..answer }]
            }
            _ => {
                let effects = self.session.handle(now, BfdInput::Packet(&packet));
                self.perform(now, effects)
            }
        }
    }

    /// What a kernel that reflects has heard; one that does not is this session itself.
    fn hear(&mut self, now: Duration) {
        if let Some(at) = self.reflected.take() {
            assert!(self.session.handle(now, BfdInput::Heard(at)).is_empty());
        }
    }

    fn configure(&mut self, now: Duration, config: BfdConfig) {
        self.hear(now);
        let effects = self.session.configure(config, now);
        assert!(self.perform(now, effects).is_empty());
    }

    fn tick(&mut self, now: Duration) -> Vec<ControlPacket> {
        if self.session.deadline().is_none_or(|deadline| deadline > now) {
            return Vec::new();
        }
        // Only now, as an agent does.
        self.hear(now);
        if self.session.deadline().is_none_or(|deadline| deadline > now) {
            return Vec::new();
        }
        let effects = self.session.handle(now, BfdInput::Tick);
        self.perform(now, effects)
    }
}

/// Two nodes and the path between them.
struct World {
    now: Duration,
    nodes: [Node; 2],
    /// Packets on the path: arrival, receiver.
    path: Vec<(Duration, usize, ControlPacket)>,
    /// Which direction is broken.
    broken: [bool; 2],
    /// Packets by sender.
    sent: [usize; 2],
}

impl World {
    fn new(first: BfdConfig, second: BfdConfig) -> Self {
        let nodes = [Node::new(first, 0x1111, true), Node::new(second, 0x2222, false)];
        let broken = [false; 2];
        Self { now: Duration::ZERO, nodes, path: Vec::new(), broken, sent: [0; 2] }
    }

    /// `lost`: whether a packet of this sender is lost.
    fn run(&mut self, time: Duration, mut lost: impl FnMut(usize) -> bool) {
        let end = self.now + time;
        while self.now < end {
            self.now += MS;
            let (arrived, path) = self.path.drain(..).partition(|(at, ..)| *at <= self.now);
            self.path = path;
            for (_, receiver, packet) in arrived {
                let answers = self.nodes[receiver].receive(self.now, packet);
                self.send(receiver, answers, &mut lost);
            }
            for sender in 0..2 {
                // The second node has no such kernel: it always sends by itself.
                let packets = self.nodes[sender].tick(self.now);
                self.send(sender, packets, &mut lost);
            }
        }
    }

    fn send(
        &mut self,
        sender: usize,
        packets: Vec<ControlPacket>,
        lost: &mut impl FnMut(usize) -> bool,
    ) {
        for packet in packets {
            self.sent[sender] += 1;
            if !self.broken[sender] && !lost(sender) {
                self.path.push((self.now + MS, 1 - sender, packet));
            }
        }
    }

    fn states(&self) -> [BfdState; 2] {
        [self.nodes[0].session.state(), self.nodes[1].session.state()]
    }
}

/// A peer that sends by itself whatever its session says, as all others do.
fn plain(node: &mut Node) {
    node.session.reflection = None;
    node.kernel = None;
}

fn run_beside_a_plain_peer(world: &mut World, time: Duration) {
    for _ in 0..time.as_millis() {
        world.run(MS, |_| false);
        plain(&mut world.nodes[1]);
    }
}

#[test]
fn a_session_comes_up_and_the_kernel_takes_over() {
    let mut world = World::new(config(100, 100), config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    assert_eq!(world.states(), [BfdState::Up; 2]);
    assert!(world.nodes[0].session.is_reflected());
    assert_eq!(world.nodes[0].session.detection_time(), MS * 300);
    assert_eq!(world.nodes[0].session.send_interval(), Some(MS * 100));
    assert_eq!(world.nodes[1].session.send_interval(), Some(MS * 100));

    // From now on, each packet is answered, and nothing else is sent.
    let (by_itself, sent) = (world.nodes[0].session.counters().sent, world.sent);
    run_beside_a_plain_peer(&mut world, Duration::from_secs(10));
    assert_eq!(world.nodes[0].session.counters().sent, by_itself);
    let new = [world.sent[0] - sent[0], world.sent[1] - sent[1]];
    assert!(new[0].abs_diff(new[1]) <= 1, "{new:?}");
    assert!((100..=134).contains(&new[1]), "{new:?}");
}

/// For example because no program is attached where they arrive.
#[test]
fn packets_that_the_kernel_does_not_see_are_answered() {
    let mut world = World::new(config(100, 100), config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    assert!(world.nodes[0].session.is_reflected());
    world.nodes[0].can_reflect = false;
    let sent = world.sent;
    run_beside_a_plain_peer(&mut world, Duration::from_secs(10));
    assert_eq!(world.states(), [BfdState::Up; 2]);
    assert!(world.nodes.iter().all(|node| node.session.counters().downs == 0));
    // One for each.
    let new = [world.sent[0] - sent[0], world.sent[1] - sent[1]];
    assert!(new[0].abs_diff(new[1]) <= 1, "{new:?}");
}

#[test]
fn a_broken_path_is_detected_in_time() {
    for direction in 0..2 {
        let mut world = World::new(config(100, 100), config(100, 100));
        run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
        world.broken[direction] = true;
        let broken_at = world.now;
        run_beside_a_plain_peer(&mut world, MS * 310);
        // The side that no longer receives packets is down.
        assert_ne!(world.states()[1 - direction], BfdState::Up, "direction {direction}");
        let (at, _) = world.nodes[1 - direction].changes.last().copied().unwrap();
        assert!(at - broken_at <= MS * 302, "{:?}", at - broken_at);
        assert_eq!(
            world.nodes[1 - direction].session.diagnostic(),
            Diagnostic::DETECTION_TIME_EXPIRED
        );
        world.broken[direction] = false;
        run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
        assert_eq!(world.states(), [BfdState::Up; 2]);
    }
}

#[test]
fn a_peer_that_hears_nothing_says_so() {
    let mut world = World::new(config(100, 100), config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    // What the first node sends is lost: the second one says down, and the first one hears it.
    world.broken[0] = true;
    run_beside_a_plain_peer(&mut world, MS * 420);
    assert_eq!(world.states()[0], BfdState::Down);
    assert_eq!(world.nodes[0].session.diagnostic(), Diagnostic::NEIGHBOUR_SIGNALLED_DOWN);
}

#[test]
fn the_slower_side_decides() {
    // The peer sends only every 300 ms, so answers can be no more frequent: both learn that.
    let mut world = World::new(config(50, 50), config(300, 20));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(8));
    assert_eq!(world.states(), [BfdState::Up; 2]);
    assert!(world.nodes[0].session.is_reflected());
    assert_eq!(world.nodes[0].session.detection_time(), MS * 900);
    assert_eq!(world.nodes[1].session.detection_time(), MS * 900);
}

#[test]
fn a_session_outlives_its_process() {
    let mut world = World::new(config(100, 100), config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    let reflection = world.nodes[0].kernel.unwrap();
    let changes = world.nodes[1].changes.len();
    // For ten seconds only the kernel answers.
    for _ in 0..10_000 {
        world.nodes[0].session.send_at = world.now + SLOW_INTERVAL;
        world.nodes[0].session.heard = None;
        world.run(MS, |_| false);
        plain(&mut world.nodes[1]);
    }
    let adopted = BfdStateMachine::adopt(config(100, 100), &reflection, MS * 80, 7, world.now);
    let (session, effects) = adopted.unwrap();
    assert!(effects.is_empty());
    assert_eq!(session.state(), BfdState::Up);
    assert_eq!(session.discriminator(), 0x1111);
    world.nodes[0].session = session;
    run_beside_a_plain_peer(&mut world, Duration::from_secs(10));
    assert_eq!(world.states(), [BfdState::Up; 2]);
    assert_eq!(world.nodes[1].changes.len(), changes);

    let mut wrong = reflection;
    wrong.answer[7] ^= 1;
    assert!(BfdStateMachine::adopt(config(100, 100), &wrong, MS * 80, 7, world.now).is_none());
}

/// The peer has given such a session up, and may have restarted since.
#[test]
fn a_session_that_was_silent_for_the_detection_time_is_not_adopted() {
    let mut world = World::new(config(100, 100), config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    let (reflection, now) = (world.nodes[0].kernel.unwrap(), world.now);
    let adopt = |age| BfdStateMachine::adopt(config(100, 100), &reflection, age, 7, now);
    // Silence counts from the last answer, not from the adoption.
    assert_eq!(adopt(MS * 299).unwrap().0.deadline(), Some(now + MS));
    assert!(adopt(MS * 300).is_none());
}

/// Another interval in either direction, for either side the longer one, or another multiplier.
fn other_settings() -> [BfdConfig; 6] {
    let multiplier = BfdConfig { multiplier: 5, ..config(100, 100) };
    [
        config(50, 100),
        config(300, 100),
        config(100, 50),
        config(100, 300),
        config(400, 30),
        multiplier,
    ]
}

/// A session is up between two nodes; what `change` does to the first one's settings is no fault for either, even if
/// packets are lost, and then the kernel answers again.
fn stays_up_with_other_settings(change: impl Fn(&mut World, BfdConfig)) {
    // The session knows of the kernel's last answer at very different times.
    let ages = |other| (0..300).step_by(20).map(move |age| (other, age));
    for (other, age) in other_settings().into_iter().flat_map(ages) {
        let mut world = World::new(config(100, 100), config(100, 100));
        run_beside_a_plain_peer(&mut world, MS * 5_000 + MS * age);
        let changes = world.nodes.each_ref().map(|node| node.changes.len());
        change(&mut world, other);
        // The first packets with the new settings are lost.
        world.broken[0] = true;
        run_beside_a_plain_peer(&mut world, MS * 120);
        world.broken[0] = false;
        run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
        assert_eq!(world.states(), [BfdState::Up; 2], "{other:?}");
        let [first, second] = &world.nodes;
        assert_eq!([first.changes.len(), second.changes.len()], changes, "{other:?}");
        assert!(first.session.is_reflected(), "{other:?}");
        assert_eq!(first.session.before, PacketIntervals::default());
        let told = second.session.remote();
        assert_eq!(told.min_rx, interval_to_micros(other.receive), "{other:?}");
        assert_eq!(told.multiplier, other.multiplier);
        let expected = second.session.send_interval().unwrap() * 3;
        assert_eq!(first.session.detection_time(), expected, "{other:?}");
    }
}

#[test]
fn a_session_stays_up_when_its_settings_change() {
    stays_up_with_other_settings(|world, other| {
        world.nodes[0].configure(world.now, other);
        assert!(!world.nodes[0].session.is_reflected() && world.nodes[0].kernel.is_none());
    });
}

#[test]
fn settings_that_change_again_during_a_poll_wait_for_its_end() {
    stays_up_with_other_settings(|world, other| {
        world.nodes[0].configure(world.now, config(1_000, 1_000));
        run_beside_a_plain_peer(world, MS * 2);
        assert!(world.nodes[0].session.polling);
        world.nodes[0].configure(world.now, config(700, 700));
        world.nodes[0].configure(world.now, other);
    });
}

/// Over several hops more than one poll is on the way at once.
#[test]
fn a_late_confirmation_is_not_taken_for_that_of_later_settings() {
    let mut world = World::new(config(100, 100), config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    let now = world.now;
    let plain = world.nodes[1].session.packet();
    let last = ControlPacket { is_final: true, ..plain };
    let node = &mut world.nodes[0];
    node.configure(now, config(1_000, 1_000));
    let receive = |node: &mut Node, packet: &ControlPacket| {
        node.session.handle(now, BfdInput::Packet(packet));
        node.session.polling
    };
    assert!(!receive(node, &last));
    // Before a packet that confirms nothing, the first poll's second confirmation may come.
    node.configure(now, config(300, 50));
    assert!(!node.session.polling);
    assert!(!receive(node, &last));
    assert!(receive(node, &plain), "now they are announced");
    assert_eq!(node.session.detection_time(), MS * 3_000);
    assert!(!node.session.is_reflected());
}

#[test]
fn a_process_with_other_settings_continues_the_session() {
    stays_up_with_other_settings(|world, other| {
        let reflection = world.nodes[0].kernel.unwrap();
        let age = world.nodes[0].reflected.map_or(MS * 10, |at| world.now - at);
        let adopted = BfdStateMachine::adopt(other, &reflection, age, 7, world.now);
        let (session, effects) = adopted.unwrap();
        let node = &mut world.nodes[0];
        node.session = session;
        assert!(node.perform(world.now, effects).is_empty() && node.kernel.is_none());
    });
}

/// Another process did not adopt it.
#[test]
fn the_end_of_a_session_that_is_not_adopted_is_no_fault() {
    let mut world = World::new(config(100, 100), config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    let reflection = world.nodes[0].kernel.unwrap();
    world.nodes[0] = Node::new(config(150, 150), 0x3333, true);
    let last: Vec<ControlPacket> = reflection.last_packet().into_iter().collect();
    world.send(0, last, &mut |_| false);
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    assert_eq!(world.states(), [BfdState::Up; 2]);
    let changes = &world.nodes[1].changes;
    assert!(changes.iter().any(|(_, change)| change.from == BfdState::Up), "{changes:?}");
    assert!(changes.iter().all(|(_, change)| !change.is_fault()), "{changes:?}");
}

#[test]
fn a_poll_is_answered_and_new_intervals_are_agreed_on() {
    let mut world = World::new(config(100, 100), config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    // The peer's operator changes its interval.
    world.nodes[1].session.config = config(200, 100);
    world.nodes[1].session.agree_on_interval();
    run_beside_a_plain_peer(&mut world, Duration::from_secs(2));
    assert_eq!(world.states(), [BfdState::Up; 2]);
    assert_eq!(world.nodes[1].session.counters().downs, 0);
    assert!(world.nodes[0].session.is_reflected());
    assert!(!world.nodes[1].session.polling);
    assert_eq!(world.nodes[0].session.detection_time(), MS * 600);
}

#[test]
fn the_last_packet_names_the_decision() {
    let mut world = World::new(config(100, 100), config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    let now = world.now;
    let effects = world.nodes[0].session.handle(now, BfdInput::AdminDown);
    assert!(effects.contains(&BfdEffect::StopReflecting));
    let packets = world.nodes[0].perform(now, effects);
    world.send(0, packets, &mut |_| false);
    run_beside_a_plain_peer(&mut world, MS * 3);
    assert_eq!(world.states(), [BfdState::AdminDown, BfdState::Down]);
    assert_eq!(world.nodes[1].session.remote().diagnostic, Diagnostic::ADMINISTRATIVELY_DOWN);
}

#[test]
fn a_passive_session_waits_for_the_peer() {
    let passive = BfdConfig { passive: true, ..config(100, 100) };
    let mut world = World::new(passive, passive);
    world.run(Duration::from_secs(5), |_| false);
    assert_eq!(world.sent, [0, 0]);
    let mut world = World::new(passive, config(100, 100));
    run_beside_a_plain_peer(&mut world, Duration::from_secs(5));
    assert_eq!(world.states(), [BfdState::Up; 2]);
}

#[test]
fn a_peer_that_wants_no_packets_gets_none() {
    let mut session = BfdStateMachine::new(config(100, 100), 1, 1, Duration::ZERO);
    let packet = ControlPacket { required_min_rx: 0, my_discriminator: 9, ..session.packet() };
    session.handle(MS, BfdInput::Packet(&packet));
    assert_eq!(session.state(), BfdState::Init);
    assert_eq!(session.send_interval(), None);
    let effects = session.handle(MS * 2, BfdInput::Tick);
    assert!(!effects.iter().any(|effect| matches!(effect, BfdEffect::Send(_))), "{effects:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Whatever is lost: with a path that works again, both sides are up again, and neither is up
    /// for longer than its detection time after the path has broken.
    #[test]
    fn sessions_recover_from_any_loss(
        first in (20_u64..300, 20_u64..300),
        second in (20_u64..300, 20_u64..300),
        losses in proptest::collection::vec((0_u8..101, 100_u32..3000), 1..5),
        seed in any::<u64>(),
    ) {
        let mut world = World::new(config(first.0, first.1), config(second.0, second.1));
        let mut random = seed;
        for (percent, time) in losses {
            for _ in 0..time {
                world.run(MS, |_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) % 100 < percent.into()
                });
                plain(&mut world.nodes[1]);
            }
        }
        run_beside_a_plain_peer(&mut world, Duration::from_secs(12));
        prop_assert_eq!(world.states(), [BfdState::Up; 2]);
        prop_assert!(world.nodes[0].session.is_reflected());
        world.broken = [true; 2];
        let longest = world.nodes.iter().map(|node| node.session.detection_time()).max().unwrap();
        run_beside_a_plain_peer(&mut world, longest + MS * 2);
        prop_assert_eq!(world.states(), [BfdState::Down; 2]);
    }

    /// No sequence of valid packets makes a session send faster than configured, or stop working.
    #[test]
    fn hostile_packets_are_bounded(
        packets in proptest::collection::vec(proptest::array::uniform24(any::<u8>()), 1..50),
    ) {
        let mut session = BfdStateMachine::new(config(100, 100), 1, 1, Duration::ZERO);
        for (number, mut octets) in packets.into_iter().enumerate() {
            octets[0] = 0x20 | octets[0] & 0x1f;
            octets[1] &= !0x05;
            octets[3] = PACKET_OCTETS as u8;
            let Ok(packet) = ControlPacket::decode(&octets) else { continue };
            let now = MS * number as u32;
            let effects = session.handle(now, BfdInput::Packet(&packet));
            let sent = effects.iter().filter(|effect| matches!(effect, BfdEffect::Send(_))).count();
            prop_assert!(sent <= 1);
            prop_assert!(session.send_interval().is_none_or(|interval| interval >= MS * 100));
            session.handle(now, BfdInput::Tick);
        }
    }
}

/// Of a peer that has restarted, or of another machine with its address.
#[test]
fn a_packet_without_a_number_does_not_end_a_session_that_is_up() {
    let mut world = World::new(BfdConfig::default(), BfdConfig::default());
    let blind = ControlPacket { your_discriminator: 0, ..world.nodes[1].session.packet() };
    assert_eq!(blind.state, BfdState::Down);
    assert!(world.nodes[0].session.expects(&blind));
    world.run(MS * 5_000, |_| false);
    let session = &world.nodes[0].session;
    assert_eq!(session.state(), BfdState::Up);
    assert!(!session.expects(&blind));
    assert!(
        session.expects(&ControlPacket { your_discriminator: session.discriminator(), ..blind })
    );
    // It is heard after the detection time.
    world.broken = [false, true];
    world.run(MS * 1_000, |_| false);
    assert!(world.nodes[0].session.expects(&blind));
}

/// FRR wants one packet a second until it is up, and then expects them at the faster interval.
#[test]
fn a_peer_that_becomes_faster_gets_packets_in_time() {
    let mut node = Node::new(BfdConfig::default(), 0x1111, false);
    let slow = ControlPacket {
        state: BfdState::Init,
        my_discriminator: 7,
        your_discriminator: 0x1111,
        desired_min_tx: 1_000_000,
        required_min_rx: 1_000_000,
        ..node.session.packet()
    };
    let up = ControlPacket {
        state: BfdState::Up,
        desired_min_tx: 100_000,
        required_min_rx: 100_000,
        ..slow
    };
    let mut sent = Vec::new();
    for millisecond in 0..1_000 {
        let now = MS * millisecond;
        if millisecond % 100 == 0 {
            node.receive(now, if millisecond == 0 { slow } else { up });
            // No kernel answers.
            node.session.reflect_no_longer();
            node.kernel = None;
        }
        if !node.tick(now).is_empty() {
            sent.push(millisecond);
        }
    }
    assert_eq!(node.session.state(), BfdState::Up);
    let longest = sent.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(longest.is_some_and(|longest| longest <= 201), "{sent:?}");
}
