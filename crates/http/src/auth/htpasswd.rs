//! Lines `user:hash`.

use std::fmt::{self, Display};
use std::sync::Arc;

use super::Users;
use super::scheme::{self, Scheme};

/// A line that lets no one in. It never contains the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// From 1.
    pub line: usize,
    pub user: Option<Arc<str>>,
    pub reason: scheme::UnusableHash,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(user) = &self.user {
            write!(f, " (user {user})")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl Users {
    /// The users of all valid lines, and what is wrong with the others. Empty lines and comments are skipped. The first
    /// line of a user counts, as with nginx.
    pub fn parse(text: &str) -> (Self, Vec<Problem>) {
        let mut users = Self::default();
        let mut problems = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut problem =
                |user, reason| problems.push(Problem { line: number + 1, user, reason });
            let Some((user, rest)) = line.split_once(':') else {
                problem(None, scheme::UnusableHash::NoHash);
                continue;
            };
            let user = Arc::from(user);
            // htpasswd's lines may have comments behind the hash, as nginx documents.
            let hash = rest.split(':').next().unwrap_or_default();
            match Scheme::parse(hash) {
                Ok(_) if users.0.contains_key(&user) => {
                    problem(Some(user), scheme::UnusableHash::Repeated)
                }
                Ok(scheme) => {
                    users.0.insert(user, Arc::new(scheme));
                }
                Err(reason) => problem(Some(user), reason),
            }
        }
        (users, problems)
    }
}
