use std::path::Path;

use anyhow::Result;

use crate::kernel::{self, Pins, preflight};

pub fn cleanup(pin_path: &Path) -> Result<()> {
    preflight()?;
    match Pins::open_existing(pin_path)? {
        Some(pins) => {
            for attached in kernel::remove(pins)? {
                println!("detached {attached}");
            }
            println!("removed {}", pin_path.display());
        }
        None => println!("nothing to clean up: {} does not exist", pin_path.display()),
    }
    Ok(())
}
