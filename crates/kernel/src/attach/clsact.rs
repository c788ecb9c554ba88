//! The filters of clsact qdiscs: which ones are recorded beside the pins, and their removal.

use std::path::Path;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::net::if_::{if_nameindex, if_nametoindex};

use super::filters::Filters;
use crate::hook::{Direction, Hook};
use crate::pins::Pins;

pub(crate) fn clsact_hook(direction: Direction) -> Hook {
    match direction {
        Direction::Ingress => Hook::ClsactIngress,
        Direction::Egress => Hook::ClsactEgress,
    }
}

/// The filters that are recorded beside the pins.
pub(crate) fn noted_filters(pins: &Pins) -> Result<Vec<(String, Direction)>> {
    let mut noted = Vec::new();
    for device in pins.devices_with_filters()? {
        let there = |direction: &Direction| pins.has_filter(&device, direction.name());
        let directions = Direction::ALL.into_iter().filter(there);
        noted.extend(directions.map(|direction| (device.clone(), direction)));
    }
    Ok(noted)
}

/// Removes the filter if one is recorded, and with the last filter the qdisc, if Millrace added it
/// and no other filters use it.
pub(crate) fn remove_filter(pins: &Pins, device: &str, direction: Direction) -> Result<()> {
    if !pins.has_filter(device, direction.name()) {
        return Ok(());
    }
    let index = match if_nametoindex(device) {
        Ok(index) => Some(index),
        // The filters were removed with it.
        Err(Errno::ENODEV) => None,
        Err(error) => return Err(error).with_context(|| device.to_owned()),
    };
    let mut filters = open_filters(pins)?;
    if let Some(index) = index {
        filters.remove(index, direction).with_context(|| device.to_owned())?;
    }
    pins.forget_filter(device, direction.name())?;
    if Direction::ALL.iter().any(|direction| pins.has_filter(device, direction.name())) {
        return Ok(());
    }
    if let Some(index) = index
        && pins.made_qdisc(device)
    {
        filters.remove_qdisc_if_empty(index).with_context(|| device.to_owned())?;
    }
    pins.forget_qdisc(device)
}

/// The program id of the filter for this hook, if it exists.
pub(crate) fn filter_program(pin_path: &Path, device: u32, hook: Hook) -> Result<Option<u32>> {
    let direction = match hook {
        Hook::ClsactIngress => Direction::Ingress,
        Hook::ClsactEgress => Direction::Egress,
        _ => return Ok(None),
    };
    Filters::open(owner(pin_path))?.program(device, direction)
}

/// Filters whose records were lost, found by name on the devices of this network namespace.
pub fn find_stray_filters(pin_path: &Path) -> Result<Vec<(String, Direction)>> {
    let mut filters = Filters::open(owner(pin_path))?;
    let mut found = Vec::new();
    for device in if_nameindex().context("this machine's devices can't be listed")?.iter() {
        for direction in Direction::ALL {
            if filters.has(device.index(), direction)? {
                found.push((device.name().to_string_lossy().into_owned(), direction));
            }
        }
    }
    Ok(found)
}

/// Leaves the qdisc, because its owner is unknown.
pub(crate) fn remove_stray_filter(
    pin_path: &Path,
    device: &str,
    direction: Direction,
) -> Result<()> {
    let mut filters = Filters::open(owner(pin_path))?;
    match if_nametoindex(device) {
        Ok(index) => filters.remove(index, direction).map(drop),
        // The filters were removed with it.
        Err(Errno::ENODEV) => Ok(()),
        Err(error) => Err(error.into()),
    }
    .with_context(|| device.to_owned())
}

/// The names of filters on a device that belong to other data planes than this directory's.
pub(crate) fn filters_of_others(device: u32, pin_path: &Path) -> Result<Vec<String>> {
    let mut filters = Filters::open(owner(pin_path))?;
    let mut others = Vec::new();
    for direction in Direction::ALL {
        others.extend(
            filters.others(device, direction)?.into_iter().filter(|n| n.starts_with(OWNER)),
        );
    }
    Ok(others)
}

const OWNER: &str = "millrace:";

/// The owner's name, from the pin path: each data plane has its own.
fn owner(pin_path: &Path) -> String {
    format!("{OWNER}{}", pin_path.display())
}

pub(crate) fn open_filters(pins: &Pins) -> Result<Filters> {
    Filters::open(owner(pins.path()))
}
