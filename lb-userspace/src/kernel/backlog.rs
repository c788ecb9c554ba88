//! Steps that could not be carried out yet.
//!
//! # Invariants
//! - Steps are carried out in their order: what leads to something is written after it, and
//!   what is given up is given up before it is used again. A step that fails keeps all that
//!   come after it waiting until it succeeds.
//! - Only a new frontend for which a map has no room is set aside instead: nothing depends on
//!   it, and the rest must not wait for room that may never come. It is tried again whenever
//!   there may be room.
//! - When nothing waits and nothing is set aside, the tables are as if nothing had failed.

use std::collections::{BTreeMap, VecDeque};

use anyhow::Result;
use lb_common::layout;
use nix::errno::Errno;

use super::Tables;
use crate::network;
use crate::plan::{FrontendKey, Plan, Step};

/// What steps are carried out on.
pub trait Write {
    fn apply(&mut self, step: &Step) -> Result<()>;
    /// By index; `None`: gone.
    fn change_devices(&mut self, devices: &BTreeMap<u32, Option<network::Device>>) -> Result<()>;
    /// Makes void what flows remember of the network.
    fn next_epoch(&mut self);
}

impl Write for Tables {
    fn apply(&mut self, step: &Step) -> Result<()> {
        Tables::apply(self, step)
    }

    fn change_devices(&mut self, devices: &BTreeMap<u32, Option<network::Device>>) -> Result<()> {
        Tables::change_devices(self, devices)
    }

    fn next_epoch(&mut self) {
        Tables::next_epoch(self);
    }
}

pub struct Backlog<T> {
    tables: T,
    waiting: VecDeque<Step>,
    set_aside: BTreeMap<FrontendKey, layout::Frontend>,
}

impl<T: Write> Backlog<T> {
    pub fn new(tables: T) -> Self {
        Self { tables, waiting: VecDeque::new(), set_aside: BTreeMap::new() }
    }

    pub fn tables_mut(&mut self) -> &mut T {
        &mut self.tables
    }

    pub fn tables(&self) -> &T {
        &self.tables
    }

    /// Carries out a plan as far as possible. After an error `retry` is to be called some time.
    pub fn carry_out(&mut self, plan: &Plan) -> Result<()> {
        let mut steps = plan.steps();
        if self.waiting.is_empty() {
            while let Some(step) = steps.next() {
                if let Err(error) = self.write(step) {
                    self.waiting.push_back(step.clone());
                    self.waiting.extend(steps.cloned());
                    return Err(error);
                }
            }
            return self.try_set_aside();
        }
        self.waiting.extend(steps.cloned());
        self.retry()
    }

    /// Tries again what could not be carried out.
    pub fn retry(&mut self) -> Result<()> {
        while let Some(step) = self.waiting.pop_front() {
            if let Err(error) = self.write(&step) {
                self.waiting.push_front(step);
                return Err(error);
            }
        }
        self.try_set_aside()
    }

    /// Whether some steps are still to be carried out.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The frontends for which there is no room.
    pub fn set_aside(&self) -> impl Iterator<Item = &FrontendKey> {
        self.set_aside.keys()
    }

    fn write(&mut self, step: &Step) -> Result<()> {
        if let Step::SetFrontend { key, .. } | Step::RemoveFrontend { key } = step {
            self.set_aside.remove(key);
        }
        match (self.tables.apply(step), step) {
            (Err(error), Step::SetFrontend { key, value }) if is_full(&error) => {
                self.set_aside.insert(*key, *value);
                Ok(())
            }
            (result, _) => result,
        }
    }

    fn try_set_aside(&mut self) -> Result<()> {
        while let Some((&key, &value)) = self.set_aside.first_key_value() {
            match self.tables.apply(&Step::SetFrontend { key, value }) {
                Ok(()) => drop(self.set_aside.remove(&key)),
                Err(error) if is_full(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether a map refused a new entry because it has as many as it can hold. An entry that is
/// there already is never refused so.
fn is_full(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.and_then(std::io::Error::raw_os_error) == Some(Errno::E2BIG as i32)
    })
}

#[cfg(test)]
mod tests;
