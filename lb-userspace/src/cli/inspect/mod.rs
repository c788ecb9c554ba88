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

pub use announcements::{Announcements, EXAMPLES as ANNOUNCEMENTS, show as announcements};
pub use backends::{EXAMPLES as BACKENDS, show as backends};
pub use bfd::{Bfd, EXAMPLES as BFD, show as bfd};
pub use bgp::{Bgp, EXAMPLES as BGP, show as bgp};
pub use counters::{Counters, EXAMPLES as COUNTERS, show as counters};
pub use flows::{EXAMPLES as FLOWS, Flows, show as flows};
pub use frontends::{EXAMPLES as FRONTENDS, show as frontends};
pub use maglev::{EXAMPLES as MAGLEV, Maglev, show as maglev};
pub use options::Named;
pub use services::{EXAMPLES as SERVICES, show as services};
pub use status::{EXAMPLES as STATUS, Options as Status, show as status};
pub use top::{EXAMPLES as TOP, Options as Top, show as top};
