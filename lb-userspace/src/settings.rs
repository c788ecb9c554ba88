//! Types, defaults and limits of settings that `config` reads and other modules obey.
//!
//! Imports nothing of this crate, so that `config` need not know the modules that obey, nor they it.

use clap::ValueEnum;

/// Default of `--pin-path`.
pub const DEFAULT_PIN_PATH: &str = "/sys/fs/bpf/millrace";

/// Default of `--metrics-max-objects`.
pub const DEFAULT_METRICS_MAX_OBJECTS: usize = 2_000;

/// Upper limits of `--max-service-ports`, `--max-endpoints` and `--max-flows`, so that no map is
/// larger than the kernel allows: a mapped array takes less than 4 GiB.
pub const MOST_SERVICE_PORTS: u32 = 1 << 20;
pub const MOST_ENDPOINTS: u32 = 1 << 22;
pub const MOST_FLOWS: u32 = 1 << 27;

/// Where XDP runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum XdpMode {
    /// In the driver if it can, but for veth devices; else tc serves without it
    #[default]
    Auto,
    /// In the driver only
    Native,
    /// In the stack only: slower, and wrong where frames arrive merged or without whole checksums,
    /// as on bridges and veth devices
    Generic,
    /// Nowhere: tc serves alone, beside others that use XDP
    Off,
}

impl XdpMode {
    /// Whether it is to be tried on a device; `finished`: none of its frames comes unfinished.
    pub fn is_for(self, finished: bool) -> bool {
        match self {
            Self::Auto => finished,
            Self::Native | Self::Generic => true,
            Self::Off => false,
        }
    }
}

/// How programs are attached to tc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TcMode {
    /// By tcx where the kernel has it (Linux 6.6), else by clsact
    #[default]
    Auto,
    /// By links
    Tcx,
    /// By filters of a clsact qdisc
    Clsact,
}

/// What programs may say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BpfLogLevel {
    #[default]
    Off,
    Error,
    Warn,
    Info,
    Debug,
}
