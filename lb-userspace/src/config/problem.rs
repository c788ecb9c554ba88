use std::error::Error;
use std::fmt::{self, Display, Formatter};

/// What is wrong with one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub setting: String,
    /// What was given, and where.
    pub given: Option<(String, String)>,
    /// What is wrong, and what to do.
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

/// All that is wrong, at once.
#[derive(Debug)]
pub struct Problems(pub Vec<Problem>);

impl Display for Problems {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [problem] => write!(f, "the configuration is wrong: {problem}"),
            problems => {
                write!(f, "{} things are wrong with the configuration:", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl Error for Problems {}
