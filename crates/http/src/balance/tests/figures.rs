//! What a choice costs. Run by hand:
//! `cargo test --release -p lb-http --lib figures -- --ignored --nocapture`

use std::hint::black_box;

use super::*;

/// Nanoseconds of a choice, with its guard. The best of many short rounds: other processes do not interrupt all of them.
fn measure(count: u16, hash: bool) -> f64 {
    const CHOICES: u64 = 500;
    let world = World::new(0..count);
    let round = |round: u64| {
        let start = Instant::now();
        for choice in 0..CHOICES {
            let random = mix_hash(round * CHOICES + choice);
            let pick = Pick {
                now: world.now,
                random,
                hash: hash.then_some(random),
                affinity: None,
                tried: &[],
            };
            drop(black_box(world.balancer.choose(black_box(&pick))));
        }
        start.elapsed()
    };
    let best = (0..2_000).map(round).min().unwrap();
    best.as_nanos() as f64 / CHOICES as f64
}

#[test]
#[ignore = "measures"]
fn figures_of_choices() {
    for count in [3, 1_000] {
        println!("{count} endpoints, least of two: {:.0} ns", measure(count, false));
        println!("{count} endpoints, by hash: {:.0} ns", measure(count, true));
    }
}
