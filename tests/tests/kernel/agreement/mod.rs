//! Host and kernel agree on random packets and table states.
//!
//! With a million packets, and a given seed:
//! `AGREEMENT_PACKETS=1000000 AGREEMENT_SEED=7 cargo test -p tests --release --test kernel agreement::
//! -- --nocapture`

use std::env;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use fuzz::{Input, Scenario, random_bytes};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::unistd::Pid;

mod random_kernel;
mod scenarios;

use scenarios::Agreement;

const PACKETS: u64 = 60_000;

/// Random bytes for each scenario.
const BYTES: usize = 4_096;

#[test]
fn host_and_kernel_agree_on_random_packets_and_tables() -> Result<()> {
    keep_to_one_processor()?;
    // A namespace without routes, which nothing else changes meanwhile.
    unshare(CloneFlags::CLONE_NEWNET).context("a network namespace")?;
    let packets = number("AGREEMENT_PACKETS")?.unwrap_or(PACKETS);
    let first = match number("AGREEMENT_SEED")? {
        Some(seed) => seed,
        None => SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64,
    };
    let mut agreement = Agreement::new()?;
    let began = Instant::now();
    for seed in first.. {
        let bytes = random_bytes(seed, BYTES);
        let difference = agreement.check(&Scenario::read(&mut Input::new(&bytes)))?;
        if let Some(difference) = difference {
            panic!("AGREEMENT_SEED={seed}: host and kernel differ: {difference}");
        }
        if agreement.packets >= packets {
            break;
        }
    }
    println!(
        "agreed on {} packets in {} states, {} of them translated; {} runs again for the clock; {:?}",
        agreement.packets,
        agreement.scenarios,
        agreement.translated,
        agreement.repeated,
        began.elapsed()
    );
    Ok(())
}

/// The rate limit for resets and ICMP errors is per CPU, so all packets must use the same one.
fn keep_to_one_processor() -> Result<()> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread)?;
    let first = (0..CpuSet::count()).find(|&number| allowed.is_set(number) == Ok(true));
    let mut one = CpuSet::new();
    one.set(first.context("no CPU is allowed")?)?;
    sched_setaffinity(this_thread, &one).context("setting the CPU affinity")
}

fn number(name: &str) -> Result<Option<u64>> {
    let text = env::var(name).ok();
    text.map(|text| text.parse().with_context(|| format!("{name}={text}"))).transpose()
}
