//! What the verifier has to do for our programs.

use anyhow::{Context, Result};
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

fn check(sizes: Sizes) -> Result<()> {
    let world = KernelWorld::new(sizes)?;
    for (name, info) in world.data_plane.programs() {
        let count = info?.verified_instruction_count().context("this kernel does not count")?;
        println!("{name}: {count} instructions verified");
        assert!(count < LIMIT, "{name}: {count} of {LIMIT}");
    }
    Ok(())
}
