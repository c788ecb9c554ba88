//! The four kinds of patches. Pure: from the current object to the new one.

pub mod apply;
mod fields;
pub mod json;
mod managed;
pub mod merge;
mod shape;
pub mod strategic;
mod typed;

use std::fmt;

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PatchError {
    /// Not a valid patch: 400.
    Malformed(String),
    /// The patch does not fit the object: 422.
    Unfitting(String),
    /// The patch would need too much memory or time: 413.
    TooLarge(String),
}

impl fmt::Display for PatchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) | Self::Unfitting(why) | Self::TooLarge(why) => {
                formatter.write_str(why)
            }
        }
    }
}

impl std::error::Error for PatchError {}
