use std::hash::{BuildHasherDefault, DefaultHasher};
use std::net::Ipv6Addr;
use std::thread;

use proptest::prelude::*;

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

/// A limiter with its own time, and places that are the same in each run.
struct World {
    limiter: Limiter<BuildHasherDefault<DefaultHasher>>,
    owner: RouteOwner,
    now: Instant,
}

impl World {
    fn new(capacity: usize) -> Self {
        let now = Instant::now();
        let owner = RouteOwner { namespace: "default".into(), name: "web".into() };
        Self { limiter: Limiter::new(capacity, BuildHasherDefault::default(), now), owner, now }
    }

    fn admit(&self, client: impl Into<IpAddr>, limits: &RateLimits) -> Result<Permit, RetryAfter> {
        self.limiter.admit(client.into(), &self.owner, limits, self.now)
    }

    /// How many of many requests pass now.
    fn burst(&self, client: impl Into<IpAddr>, limits: &RateLimits) -> usize {
        let client = client.into();
        (0..1_000).filter(|_| self.admit(client, limits).is_ok()).count()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v4(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn per_second(count: u32, burst_multiplier: u32) -> RateLimits {
    RateLimits { requests_per_second: Some(count), burst_multiplier, ..RateLimits::default() }
}

fn per_minute(count: u32, burst_multiplier: u32) -> RateLimits {
    RateLimits { requests_per_minute: Some(count), burst_multiplier, ..RateLimits::default() }
}

fn concurrent(count: u32) -> RateLimits {
    RateLimits { concurrent: Some(count), ..RateLimits::default() }
}

#[test]
fn a_burst_passes_and_then_the_rate() {
    let mut world = World::new(64);
    let limits = per_second(10, 5);
    assert_eq!(world.burst(v4(1), &limits), 51);
    let wait = world.admit(v4(1), &limits).err().unwrap();
    assert_eq!((wait, wait.seconds()), (RetryAfter(100 * MILLISECOND), 1));
    world.now += 100 * MILLISECOND;
    assert_eq!(world.burst(v4(1), &limits), 1);
    world.now += Duration::from_secs(1);
    assert_eq!(world.burst(v4(1), &limits), 10);
    world.now += Duration::from_secs(3_600);
    assert_eq!(world.burst(v4(1), &limits), 51);
}

#[test]
fn without_burst_requests_have_to_be_apart() {
    let mut world = World::new(64);
    let limits = per_second(4, 0);
    for _ in 0..10 {
        assert_eq!(world.burst(v4(1), &limits), 1);
        world.now += 250 * MILLISECOND;
    }
}

#[test]
fn each_client_and_object_has_its_own_limit() {
    let mut world = World::new(64);
    let limits = per_minute(2, 0);
    assert_eq!(world.burst(v4(1), &limits), 1);
    assert_eq!(world.burst(v4(2), &limits), 1);
    world.owner.name = "other".into();
    assert_eq!(world.burst(v4(1), &limits), 1);
}

#[test]
fn an_ipv6_network_counts_as_one_client() {
    let world = World::new(64);
    let limits = per_minute(1, 3);
    assert_eq!(world.burst(ip("2001:db8:0:1::1"), &limits), 4);
    assert_eq!(world.burst(ip("2001:db8:0:1:ffff::2"), &limits), 0);
    assert_eq!(world.burst(ip("2001:db8:0:2::1"), &limits), 4);
    // An IPv4 client is the same on a socket of either family.
    assert_eq!(world.burst(ip("192.0.2.1"), &limits), 4);
    assert_eq!(world.burst(ip("::ffff:192.0.2.1"), &limits), 0);
    assert_eq!(world.burst(ip("::ffff:192.0.2.2"), &limits), 4);
}

#[test]
fn both_rates_count_and_refused_requests_count_in_neither() {
    let mut world = World::new(64);
    let limits = RateLimits { requests_per_minute: Some(60), ..per_second(10, 0) };
    assert_eq!(world.burst(v4(1), &limits), 1);
    // Were refused requests counted, the client would have to wait for longer.
    world.now += 999 * MILLISECOND;
    assert_eq!(world.admit(v4(1), &limits).err(), Some(RetryAfter(MILLISECOND)));
    world.now += MILLISECOND;
    assert_eq!(world.burst(v4(1), &limits), 1);
}

#[test]
fn requests_at_the_same_time_are_limited_until_they_end() {
    let world = World::new(64);
    let mut permits: Vec<_> = (0..3).map(|_| world.admit(v4(1), &concurrent(3)).unwrap()).collect();
    assert_eq!(world.admit(v4(1), &concurrent(3)).err(), Some(RetryAfter(Duration::from_secs(1))));
    assert!(world.admit(v4(2), &concurrent(3)).is_ok());
    permits.pop();
    let _last = world.admit(v4(1), &concurrent(3)).unwrap();
    assert!(world.admit(v4(1), &concurrent(3)).is_err());
    // The limit was lowered, and raised.
    assert!(world.admit(v4(1), &concurrent(1)).is_err());
    assert!(world.admit(v4(1), &concurrent(4)).is_ok());
}

#[test]
fn exempt_clients_and_objects_without_limits_are_not_counted() {
    let world = World::new(1);
    let limits = RateLimits { exempt: vec!["192.0.2.0/24".parse().unwrap()], ..per_minute(1, 0) };
    assert_eq!(world.burst(ip("192.0.2.7"), &limits), 1_000);
    assert_eq!(world.burst(ip("::ffff:192.0.2.7"), &limits), 1_000);
    assert_eq!(world.burst(ip("192.0.3.7"), &limits), 1);
    assert_eq!(world.burst(ip("192.0.3.7"), &RateLimits::default()), 1_000);
}

#[test]
fn strange_limits_are_limits() {
    let world = World::new(64);
    assert_eq!(world.burst(v4(1), &per_second(0, 0)), 1);
    assert_eq!(world.burst(v4(2), &per_second(u32::MAX, u32::MAX)), 1_000);
    assert_eq!(world.burst(v4(3), &per_minute(0, u32::MAX)), 1_000);
    assert!(world.admit(v4(4), &concurrent(0)).is_err());
}

/// Most entries go to the flood. Clients far above their limits stay known, and no other client is refused.
#[test]
fn a_flood_of_addresses_frees_no_offender_and_harms_no_one() {
    let world = World::new(1_024);
    let limits = per_minute(10, 5);
    let offenders: Vec<_> = (0..50).map(|number| v4(0x0a00_0000 + number)).collect();
    for offender in &offenders {
        assert_eq!(world.burst(*offender, &limits), 51);
    }
    for address in 0..100_000u32 {
        let network = Ipv6Addr::from(u128::from(address) << 64 | 0x2001_0db8 << 96);
        assert!(world.admit(network, &limits).is_ok());
        let client = v4(0xc000_0200 + address % 50);
        if address % 10_000 < 50 {
            assert!(world.admit(client, &limits).is_ok());
        }
    }
    let refused =
        offenders.iter().filter(|offender| world.admit(**offender, &limits).is_err()).count();
    assert_eq!(refused, offenders.len());
}

/// All entries have requests at the same time, so none can give way.
#[test]
fn a_flood_of_requests_at_the_same_time_harms_no_one() {
    let world = World::new(8);
    let permits: Vec<_> = (0..100).map(|number| world.admit(v4(number), &concurrent(1))).collect();
    assert!(permits.iter().all(Result::is_ok));
    assert!(world.admit(v4(7), &concurrent(1)).is_err());
    assert!(world.admit(v4(50), &concurrent(1)).is_ok());
    drop(permits);
    let permits: Vec<_> = (50..58).map(|number| world.admit(v4(number), &concurrent(1))).collect();
    assert!((50..58).all(|number| world.admit(v4(number), &concurrent(1)).is_err()));
    drop(permits);
}

#[test]
fn threads_share_a_limit() {
    let world = World::new(64);
    let limits = RateLimits { concurrent: Some(1_000), ..per_second(100, 3) };
    let passed: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| world.burst(v4(1), &limits))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(passed, 301);
    assert!(
        (0..1_000)
            .map(|_| world.admit(v4(1), &concurrent(1_000)))
            .collect::<Vec<_>>()
            .iter()
            .all(Result::is_ok)
    );
}

#[test]
fn retry_after_is_in_whole_seconds_and_not_too_early() {
    let seconds = |millis| RetryAfter(Duration::from_millis(millis)).seconds();
    assert_eq!([seconds(1), seconds(1_000), seconds(1_001), seconds(59_999)], [1, 1, 2, 60]);
}

proptest! {
    #[test]
    fn no_window_has_more_than_the_rate(
        count in 1..50u32,
        multiplier in 0..4u32,
        minutes in any::<bool>(),
        pauses in prop::collection::vec(prop_oneof![3 => Just(0), 2 => 0..50u64, 1 => 0..5_000u64], 1..300),
    ) {
        let mut world = World::new(64);
        let limits = if minutes { per_minute(count, multiplier) } else { per_second(count, multiplier) };
        let period = Duration::from_secs(if minutes { 60 } else { 1 });
        let mut passed = Vec::new();
        for pause in pauses {
            world.now += Duration::from_millis(pause);
            if world.admit(v4(1), &limits).is_ok() {
                passed.push(world.now);
            }
        }
        let burst = f64::from(count * multiplier);
        for (i, start) in passed.iter().enumerate() {
            for (j, end) in passed.iter().enumerate().skip(i) {
                let window = (*end - *start).as_secs_f64();
                let most = 1.0 + burst + window / period.as_secs_f64() * f64::from(count);
                prop_assert!((j - i + 1) as f64 <= most + 1e-6);
            }
        }
    }

    /// A client that keeps to the rate, or waits for as long as the response asks, passes.
    #[test]
    fn whoever_waits_passes(count in 1..1_000u32, multiplier in 0..4u32, requests in 1..200usize) {
        let mut world = World::new(64);
        let limits = per_second(count, multiplier);
        for _ in 0..requests {
            if let Err(RetryAfter(wait)) = world.admit(v4(1), &limits) {
                prop_assert!(wait <= Duration::from_secs(1).div_f64(f64::from(count)) + Duration::from_nanos(1));
                world.now += wait;
                prop_assert!(world.admit(v4(1), &limits).is_ok());
            }
        }
    }

    #[test]
    fn never_more_requests_at_the_same_time(most in 1..5u32, steps in prop::collection::vec((0..3u32, any::<bool>()), 0..100)) {
        let world = World::new(64);
        let mut open: Vec<Vec<Permit>> = (0..3).map(|_| Vec::new()).collect();
        for (client, begins) in steps {
            let requests = &mut open[client as usize];
            if !begins {
                requests.pop();
            } else if let Ok(permit) = world.admit(v4(client), &concurrent(most)) {
                requests.push(permit);
                prop_assert!(requests.len() <= most as usize);
            } else {
                prop_assert_eq!(requests.len(), most as usize);
            }
        }
    }
}
