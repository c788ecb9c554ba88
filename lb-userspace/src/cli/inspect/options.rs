//! The options that these commands share, and the maps that they read.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use lb_inspect::{Reading, Selector};
use lb_kernel::{Tables, check_schema};

use crate::cli::output::{self, Output, Row};

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
    pub fn of(&self, service: Option<&Selector>) -> Selector {
        service.cloned().unwrap_or_default().within(self.namespace.as_deref())
    }
}

impl Named {
    fn meant(&self) -> Selector {
        self.namespaces.of(self.service.as_ref())
    }

    /// Prints what `find` returns for the meant Services.
    pub fn show<T: Row>(
        &self,
        pin_path: &Path,
        find: impl Fn(&Reading, &Selector) -> Vec<T>,
    ) -> Result<()> {
        let tables = open_tables(pin_path)?;
        let meant = self.meant();
        output::show_rows(&self.output, || self.found(find(&read_tables(&tables)?, &meant)))
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
pub fn check_readable(pin_path: &Path) -> Result<()> {
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

pub fn open_tables(pin_path: &Path) -> Result<Tables> {
    check_readable(pin_path)?;
    check_schema(pin_path)?;
    Tables::open(|name| pin_path.join(name))
}

pub fn read_tables(tables: &Tables) -> Result<Reading> {
    Reading::of(tables).context("cannot read the maps")
}
