//! Paths: of requests, in the one form that is matched and forwarded, and of rules.

mod expression;
mod normalize;
mod pattern;

pub use expression::{Captures, PathRegex};
pub use normalize::{InvalidPath, Slashes, comparable_path, decode_unreserved, normalize_path};
pub use pattern::PathPattern;
