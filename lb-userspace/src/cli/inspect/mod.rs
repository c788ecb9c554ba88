//! The commands that show what the kernel holds. They read the pinned maps alone: no agent need
//! run, and nothing is asked of a cluster.

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

/// Which Services are meant, and how what is found is printed.
#[derive(Debug, Args)]
pub struct Named {
    /// Only of this Service; also with a port's name or number: default/web:http
    #[arg(value_name = "[NAMESPACE/]NAME")]
    service: Option<Selector>,

    #[command(flatten)]
    namespaces: Namespaces,

    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub struct Namespaces {
    /// Only of Services in this namespace
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Of all namespaces, as without it
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

    /// Who asks for one by its name is told if there is none; who watches waits for it.
    fn found<T>(&self, found: Vec<T>) -> Result<Vec<T>> {
        if found.is_empty() && self.service.is_some() && !self.output.watch {
            bail!(
                "the maps have nothing of a Service {}.\n\
                 `millrace services` lists those that they have; why one is missing is in the \
                 agent's log, or in the Service's Events",
                self.meant()
            );
        }
        Ok(found)
    }
}

/// Whether there is a data plane that whoever runs this may look at.
fn check(pin_path: &Path) -> Result<()> {
    match pin_path.metadata() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("{} is for root only; run it with sudo", pin_path.display());
        }
        Err(_) => bail!(
            "no data plane is pinned at {}.\nStart one with `millrace agent`, or say where it is \
             with --pin-path",
            pin_path.display()
        ),
    }
}

fn open(pin_path: &Path) -> Result<Tables> {
    check(pin_path)?;
    Tables::open(|name| pin_path.join(name))
}

fn read(tables: &Tables) -> Result<Reading> {
    Reading::of(tables).context("the maps can't be read")
}
