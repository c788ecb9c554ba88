//! The four ways to change a part of an object. Pure: from what is there to what shall be.

pub mod apply;
mod fields;
pub mod json;
mod managed;
pub mod merge;
mod shape;
pub mod strategic;
mod typed;

use std::fmt;

/// Why a patch can't be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchError {
    /// It is no patch at all: 400.
    Malformed(String),
    /// It does not fit the object: 422.
    Unfitting(String),
}

impl fmt::Display for PatchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) | Self::Unfitting(why) => formatter.write_str(why),
        }
    }
}

impl std::error::Error for PatchError {}
