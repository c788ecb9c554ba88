//! Types, defaults and limits of settings that this crate obeys.

use std::str::FromStr;

use clap::ValueEnum;

/// Default of `--pin-path`.
pub const DEFAULT_PIN_PATH: &str = "/sys/fs/bpf/millrace";

/// Upper limits of `--max-service-ports`, `--max-endpoints` and `--max-flows`, so that no map is
/// larger than the kernel allows: a mapped array takes less than 4 GiB.
pub const MOST_SERVICE_PORTS: u32 = 1 << 20;
pub const MOST_ENDPOINTS: u32 = 1 << 22;
pub const MOST_FLOWS: u32 = 1 << 27;

/// `--map-memory-percent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryPercent(pub f64);

impl MemoryPercent {
    pub const DEFAULT: &str = "2.5";
}

impl Default for MemoryPercent {
    fn default() -> Self {
        Self(2.5)
    }
}

impl FromStr for MemoryPercent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(percent) if (0.1..=50.0).contains(&percent) => Ok(Self(percent)),
            _ => Err("not a number from 0.1 to 50".to_owned()),
        }
    }
}

/// XDP mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum XdpMode {
    /// Native XDP where the driver supports it, except on veth interfaces; otherwise tc only
    #[default]
    Auto,
    /// Native XDP, in the driver, only
    Native,
    /// No XDP, tc only: for interfaces where other programs use XDP
    Off,
}

impl XdpMode {
    /// Whether it is to be tried on a device; `finished`: none of its frames comes unfinished.
    pub fn is_for(self, finished: bool) -> bool {
        match self {
            Self::Auto => finished,
            Self::Native => true,
            Self::Off => false,
        }
    }
}

/// How programs are attached to tc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TcMode {
    /// tcx where the kernel supports it (Linux 6.6), otherwise clsact
    #[default]
    Auto,
    /// tcx links
    Tcx,
    /// Filters of a clsact qdisc
    Clsact,
}

/// Log level of the BPF programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BpfLogLevel {
    #[default]
    Off,
    Error,
    Warn,
    Info,
    Debug,
}
