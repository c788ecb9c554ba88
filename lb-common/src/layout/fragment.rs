use crate::family::{Family, V4, V6};

/// What all fragments of one packet have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentKey<F: Family> {
    pub source: F::Address,
    pub destination: F::Address,
    pub identification: u32,
    pub protocol: u8,
    pub reserved: [u8; 3],
}

// By hand: deriving would ask the family, a mere marker, to be hashable.
impl<F: Family> core::hash::Hash for FragmentKey<F> {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.source, self.destination, self.identification, self.protocol).hash(state);
    }
}

/// What only the first fragment says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    pub source_port: u16,
    pub destination_port: u16,
}

const _: () = {
    assert!(size_of::<FragmentKey<V4>>() == 16);
    assert!(size_of::<FragmentKey<V6>>() == 40);
    assert!(size_of::<Fragment>() == 4);
};
