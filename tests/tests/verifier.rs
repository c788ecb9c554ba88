//! What the verifier has to do for our programs.

use anyhow::{Context, Result};
use aya::util::KernelVersion;
use lb_userspace::kernel::Sizes;
use tests::datapath::KernelWorld;

/// The kernel gives up at a million instructions; compilers and kernels differ by as much as a
/// factor of two in how many they make of the same code.
const LIMIT: u32 = 250_000;

#[test]
fn programs_stay_far_from_the_verifiers_limit() -> Result<()> {
    // The sizes are constants to the verifier, and it reckons with what follows from them.
    [8, 32, 524_288].into_iter().try_for_each(|flows| check(Sizes::for_flows(flows)))
}

#[test]
fn a_kernel_that_can_lets_tc_look_at_its_description_of_a_packet() -> Result<()> {
    let world = KernelWorld::new(Sizes::for_flows(8))?;
    let can = KernelVersion::current()? >= KernelVersion::new(6, 2, 0);
    assert_eq!(world.data_plane.reads_buffers(), can);
    Ok(())
}

fn check(sizes: Sizes) -> Result<()> {
    let world = KernelWorld::new(sizes)?;
    let mut counts = Vec::new();
    for (name, info) in world.data_plane.programs() {
        let count = info?.verified_instruction_count().context("this kernel does not count")?;
        counts.push((count, name.to_owned()));
    }
    counts.sort_unstable();
    println!("instructions verified: {counts:?}");
    let most = counts.last().context("there are programs")?;
    assert!(most.0 < LIMIT, "{} of {LIMIT}: {}", most.0, most.1);
    Ok(())
}
