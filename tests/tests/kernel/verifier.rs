//! The number of instructions that the verifier processes for each program.

use anyhow::{Context, Result};
use aya::util::KernelVersion;
use lb_kernel::{Parameters, Sizes};
use tests::packets::datapath::KernelWorld;

/// The kernel's limit is a million instructions. Today's maximum is 93,000 on Linux 6.18. For the
/// same code, compilers and kernel versions may differ by more than a factor
/// of two, because a heuristic decides where the verifier remembers states.
const LIMIT: u32 = 250_000;

/// Of all programs, which most of the CPU time of an agent's start is spent on: today 1.75 million.
const LIMIT_OF_ALL: u32 = 3_000_000;

#[test]
fn programs_stay_far_below_the_verifiers_limit() -> Result<()> {
    let world = check(Sizes::for_flows(524_288))?;
    let is_allowed = KernelVersion::current()? >= KernelVersion::new(6, 2, 0);
    assert_eq!(
        world.data_plane.reads_buffers(),
        is_allowed,
        "reads the sk_buff where the kernel allows it"
    );
    Ok(())
}

/// The verifier knows the sizes as constants, so they affect the number of instructions.
#[test]
fn programs_with_small_tables_stay_far_below_the_limit() -> Result<()> {
    [8, 32].into_iter().try_for_each(|flows| check(Sizes::for_flows(flows)).map(drop))
}

fn check(sizes: Sizes) -> Result<KernelWorld> {
    check_with(Parameters { sizes, ..Parameters::default() })
}

fn check_with(parameters: Parameters) -> Result<KernelWorld> {
    let world = KernelWorld::with(parameters)?;
    let mut counts = Vec::new();
    for (name, info) in world.data_plane.programs() {
        let count = info?.verified_instruction_count().context("no instruction count")?;
        counts.push((count, name.to_owned()));
    }
    counts.sort_unstable();
    println!("instructions verified: {counts:?}");
    let most = counts.last().context("no programs")?;
    assert!(most.0 < LIMIT, "{} of {LIMIT}: {}", most.0, most.1);
    let all: u32 = counts.iter().map(|(count, _)| count).sum();
    assert!(all < LIMIT_OF_ALL, "{all} of {LIMIT_OF_ALL}");
    Ok(world)
}
