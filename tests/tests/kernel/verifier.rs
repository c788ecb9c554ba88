//! The number of instructions that the verifier processes for each program.

use anyhow::{Context, Result};
use aya::util::KernelVersion;
use lb_kernel::{Parameters, Sizes};
use tests::packets::datapath::KernelWorld;

/// The kernel's limit is a million instructions. Today's maximum is 35,000 on Linux 6.18. For the
/// same code, compilers and kernel versions may differ by more than a factor
/// of two, because a heuristic decides where the verifier remembers states.
const LIMIT: u32 = 250_000;

/// Of all programs with the default configuration, on which most of the processor time of an agent's cold
/// start is spent: today 595,000 on Linux 6.18.
const BUDGET: u32 = 600_000;

/// The budget before Linux 6.18. Not measured: no more than what programs took before they had a budget.
const OLDER_BUDGET: u32 = 1_750_000;

#[test]
fn all_programs_together_stay_within_the_verifiers_budget() -> Result<()> {
    let counts = count(&KernelWorld::with(Parameters::default())?)?;
    let is_recent = KernelVersion::current()? >= KernelVersion::new(6, 18, 0);
    let budget = if is_recent { BUDGET } else { OLDER_BUDGET };
    let all: u32 = counts.iter().map(|(count, _)| count).sum();
    let list: String =
        counts.iter().rev().map(|(count, name)| format!("\n{count:>8} {name}")).collect();
    println!("{all} instructions verified:{list}");
    assert!(all <= budget, "{all} instructions verified, the budget is {budget}:{list}");
    Ok(())
}

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
    let world = KernelWorld::new(sizes)?;
    let counts = count(&world)?;
    println!("instructions verified: {counts:?}");
    let most = counts.last().context("no programs")?;
    assert!(most.0 < LIMIT, "{} of {LIMIT}: {}", most.0, most.1);
    Ok(world)
}

/// The number of verified instructions of each program, in ascending order.
fn count(world: &KernelWorld) -> Result<Vec<(u32, String)>> {
    let mut counts = Vec::new();
    for (name, info) in world.data_plane.programs() {
        let count = info?.verified_instruction_count().context("no instruction count")?;
        counts.push((count, name.to_owned()));
    }
    counts.sort_unstable();
    Ok(counts)
}
