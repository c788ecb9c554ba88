//! What a choice costs. Run by hand:
//! `cargo test --release -p lb-http --lib figures -- --ignored --nocapture`

use std::hint::black_box;

use super::*;

/// Nanoseconds of a choice, with its guard.
fn measure(count: u16, hash: bool) -> f64 {
    const ROUNDS: u32 = 2_000_000;
    let world = World::new(0..count);
    let mut best = f64::MAX;
    for _ in 0..5 {
        let rounds = if hash { ROUNDS / 20 } else { ROUNDS };
        let start = Instant::now();
        for round in 0..u64::from(rounds) {
            let random = mix(round);
            let pick = Pick { now: world.now, random, hash: hash.then_some(random), affinity: None, tried: &[] };
            drop(black_box(world.balancer.choose(black_box(&pick))));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
    best
}

#[test]
#[ignore = "measures"]
fn figures_of_choices() {
    for count in [3, 1_000] {
        println!("{count} endpoints, least of two: {:.0} ns", measure(count, false));
        println!("{count} endpoints, by hash: {:.0} ns", measure(count, true));
    }
}
