//! The commands that show the state in the kernel. They read only the pinned maps, and need neither
//! an agent nor a cluster.

mod announcements;
mod backends;
mod bfd;
mod bgp;
mod counters;
mod flows;
mod frontends;
mod maglev;
mod options;
mod services;
mod status;
mod top;

pub use announcements::{Announcements, EXAMPLES as ANNOUNCEMENTS, show_announcements};
pub use backends::{EXAMPLES as BACKENDS, show_backends};
pub use bfd::{Bfd, EXAMPLES as BFD, show_bfd};
pub use bgp::{Bgp, EXAMPLES as BGP, show_bgp};
pub use counters::{Counters, EXAMPLES as COUNTERS, show_counters};
pub use flows::{EXAMPLES as FLOWS, Flows, show_flows};
pub use frontends::{EXAMPLES as FRONTENDS, show_frontends};
pub use maglev::{EXAMPLES as MAGLEV, Maglev, show_maglev};
pub use options::Named;
pub use services::{EXAMPLES as SERVICES, show_services};
pub use status::{EXAMPLES as STATUS, StatusOptions as Status, show_status};
pub use top::{EXAMPLES as TOP, TopOptions as Top, show_top};
