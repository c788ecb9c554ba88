/// What the agent decides before it loads the programs. The verifier treats it as constant and
/// removes what is switched off.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Secret: places flows in the table. Kept as long as the flow tables are.
    pub flow_seed: u64,
    /// Number of flow buckets less one, per family.
    pub flow_mask4: u32,
    pub flow_mask6: u32,
}

const _: () = assert!(size_of::<Settings>() == 16);
