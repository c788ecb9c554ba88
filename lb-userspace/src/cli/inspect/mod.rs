//! The commands that show the state in the kernel. They read only the pinned maps, and need neither
//! an agent nor a cluster.

mod backends;
mod counters;
mod flows;
mod frontends;
mod maglev;
mod services;
mod status;
mod top;

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::output::Output;
use crate::inspect::{Reading, Selector};
use crate::kernel::Tables;

pub use backends::{EXAMPLES as BACKENDS, show as backends};
pub use counters::{Counters, EXAMPLES as COUNTERS, show as counters};
pub use flows::{EXAMPLES as FLOWS, Flows, show as flows};
pub use frontends::{EXAMPLES as FRONTENDS, show as frontends};
pub use maglev::{EXAMPLES as MAGLEV, Maglev, show as maglev};
pub use services::{EXAMPLES as SERVICES, show as services};
pub use status::{EXAMPLES as STATUS, Options as Status, show as status};
pub use top::{EXAMPLES as TOP, Options as Top, show as top};

/// Selects Services and the output.
#[derive(Debug, Args)]
pub struct Named {
    /// Only this Service, optionally one port by name or number: default/web:http
    #[arg(value_name = "[NAMESPACE/]NAME")]
    service: Option<Selector>,

    #[command(flatten)]
    namespaces: Namespaces,

    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub struct Namespaces {
    /// Only Services in this namespace
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Services in all namespaces (default)
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
}

impl Namespaces {
    fn of(&self, service: Option<&Selector>) -> Selector {
        service.cloned().unwrap_or_default().within(self.namespace.as_deref())
    }
}

impl Named {
    fn meant(&self) -> Selector {
        self.namespaces.of(self.service.as_ref())
    }

    /// A Service given by name must exist, except with `--watch`, which waits for it.
    fn found<T>(&self, found: Vec<T>) -> Result<Vec<T>> {
        if found.is_empty() && self.service.is_some() && !self.output.watch {
            bail!(
                "Service {} is not programmed.\n\
                 `millrace services` lists the programmed Services. The agent's log and the Service's \
                 Events contain the reason",
                self.meant()
            );
        }
        Ok(found)
    }
}

/// Fails unless there is a data plane that this user may read.
fn check(pin_path: &Path) -> Result<()> {
    match pin_path.metadata() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("only root can read {}: run this command with sudo", pin_path.display());
        }
        Err(_) => bail!(
            "no data plane is pinned at {}.\nStart `millrace agent`, or set --pin-path",
            pin_path.display()
        ),
    }
}

fn open(pin_path: &Path) -> Result<Tables> {
    check(pin_path)?;
    Tables::open(|name| pin_path.join(name))
}

fn read(tables: &Tables) -> Result<Reading> {
    Reading::of(tables).context("cannot read the maps")
}
