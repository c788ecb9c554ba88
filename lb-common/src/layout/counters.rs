use crate::datapath::Direction;

/// Packets and bytes of one service port or one backend, per processor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub forward_packets: u64,
    pub forward_bytes: u64,
    pub reverse_packets: u64,
    pub reverse_bytes: u64,
    pub new_flows: u64,
}

const _: () = assert!(size_of::<Traffic>() == 40);

impl Traffic {
    #[inline(always)]
    pub fn add_packet(&mut self, direction: Direction, bytes: u32) {
        match direction {
            Direction::Forward => {
                self.forward_packets += 1;
                self.forward_bytes += u64::from(bytes);
            }
            Direction::Reverse => {
                self.reverse_packets += 1;
                self.reverse_bytes += u64::from(bytes);
            }
        }
    }
}

/// Why a packet that looked like ours was passed untouched, or dropped; each is counted.
/// Packets the prefilter lets go are not: they must cost next to nothing.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The headers are cut short or contradict themselves. Passed.
    Malformed = 0,
    /// A fragment of an IP packet. Passed.
    Fragment = 1,
    /// A transport protocol that Services don't have. Passed.
    UnknownProtocol = 2,
    /// The address is a frontend's, the port is not. Passed.
    NoFrontend = 3,
    /// The service port has no backend. Dropped.
    NoBackend = 4,
    /// Policy `Local`, and this node has no backend. Dropped.
    NoLocalBackend = 5,
    /// Every place for this flow is taken by established flows. Dropped.
    FlowTableFull = 6,
    /// A map named something that is not there: a fault of ours. Dropped.
    CorruptTable = 7,
    /// The packet could not be written to. Dropped.
    Unwritable = 8,
    /// From a backend, but of no flow we know. Passed.
    NoFlow = 9,
}

impl Reason {
    pub const COUNT: u32 = 10;

    pub const ALL: [Self; Self::COUNT as usize] = [
        Self::Malformed,
        Self::Fragment,
        Self::UnknownProtocol,
        Self::NoFrontend,
        Self::NoBackend,
        Self::NoLocalBackend,
        Self::FlowTableFull,
        Self::CorruptTable,
        Self::Unwritable,
        Self::NoFlow,
    ];

    /// The name in metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Fragment => "fragment",
            Self::UnknownProtocol => "unknown_protocol",
            Self::NoFrontend => "no_frontend",
            Self::NoBackend => "no_backend",
            Self::NoLocalBackend => "no_local_backend",
            Self::FlowTableFull => "flow_table_full",
            Self::CorruptTable => "corrupt_table",
            Self::Unwritable => "unwritable",
            Self::NoFlow => "no_flow",
        }
    }
}
