//! What the verifier has to do for our programs.

use anyhow::{Context, Result};
use lb_userspace::kernel::Sizes;
use tests::datapath::KernelWorld;

/// The kernel gives up at a million instructions; compilers and kernels differ by as much as a
/// factor of two in how many they make of the same code.
const LIMIT: u32 = 250_000;

#[test]
fn programs_stay_far_from_the_verifiers_limit() -> Result<()> {
    let mut world = KernelWorld::new(Sizes::for_flows(8))?;
    let ingress = world.data_plane.external_in()?.info()?.verified_instruction_count();
    let egress = world.data_plane.external_out()?.info()?.verified_instruction_count();
    for (name, count) in [("external_in", ingress), ("external_out", egress)] {
        let count = count.context("this kernel does not count")?;
        println!("{name}: {count} instructions verified");
        assert!(count < LIMIT, "{name}: {count} of {LIMIT}");
    }
    Ok(())
}
