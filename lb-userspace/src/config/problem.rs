//! Errors in the configuration.

use std::error::Error;
use std::fmt::{self, Display, Formatter};

/// An error in one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub setting: String,
    /// The value, and where it was set.
    pub given: Option<(String, String)>,
    /// What is wrong, and how to fix it.
    pub reason: String,
}

impl Display for Problem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.given {
            Some((value, source)) => {
                write!(f, "{}: {value:?} ({source}): {}", self.setting, self.reason)
            }
            None => write!(f, "{}: {}", self.setting, self.reason),
        }
    }
}

/// All errors in the configuration.
#[derive(Debug)]
pub struct Problems(pub Vec<Problem>);

impl Display for Problems {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [problem] => write!(f, "invalid configuration: {problem}"),
            problems => {
                write!(f, "invalid configuration, {} errors:", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl Error for Problems {}
