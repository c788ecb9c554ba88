//! Paths: of requests, in the one form that is matched and forwarded, and of rules.

mod normalize;
mod pattern;

pub use normalize::{InvalidPath, comparable, normalize};
pub use pattern::{Captures, PathPattern, PathRegex};
