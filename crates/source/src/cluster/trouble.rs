//! Why objects of a kind can't be watched, for the person who can fix it.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use kube::Error;
use kube::core::Status;

/// The longest wait that a server can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Longest message of a server, in characters.
const LONGEST_MESSAGE: usize = 500;

/// Why a list or watch has ended before its time.
#[derive(Debug)]
pub enum Trouble {
    /// The server does not have the requested version any more.
    Expired,
    /// The server does not have the requested version yet, and perhaps never will.
    TooNew,
    /// The server ignores the request to begin a watch with all objects.
    NotStreamed,
    /// A watch ends, or pauses too long, before all objects have been sent.
    BrokenOff,
    /// The server accepted the request, and has been silent for so long.
    NoAnswer(Duration),
    Refused(Box<Status>),
    Failed(String),
}

impl Trouble {
    pub fn of(error: Error) -> Self {
        match error {
            Error::Api(status) => Self::of_status(status),
            other => Self::Failed(root_cause(&other)),
        }
    }

    pub fn of_status(status: Box<Status>) -> Self {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let is_too_new = causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
            || status.message.contains("Too large resource version");
        match status.code {
            410 => Self::Expired,
            _ if is_too_new => Self::TooNew,
            _ => Self::Refused(status),
        }
    }

    /// Whether the server does not understand the request.
    pub(crate) fn is_invalid_request(&self) -> bool {
        matches!(self, Self::Refused(status) if [400, 422].contains(&status.code))
    }

    /// Whether the server does not have this kind of objects, or does not let this account read it.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, Self::Refused(status) if [403, 404].contains(&status.code))
    }

    /// Whether this account, as it proves itself, may not do this.
    pub(crate) fn is_of_permissions(&self) -> bool {
        matches!(self, Self::Refused(status) if [401, 403].contains(&status.code))
    }

    /// Whether other credentials or another CA may help.
    pub(crate) fn may_be_of_files(&self) -> bool {
        match self {
            Self::Refused(status) => status.code == 401,
            Self::Failed(_) => true,
            _ => false,
        }
    }

    /// Whether another server may do better: this one is broken, starting or stopping.
    pub(crate) fn is_of_server(&self) -> bool {
        match self {
            Self::Refused(status) => status.code >= 500,
            Self::NoAnswer(_) => true,
            _ => false,
        }
    }

    /// The wait that the server asks for.
    pub fn retry_after(&self) -> Duration {
        let Self::Refused(status) = self else { return Duration::ZERO };
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(seconds.into()).min(LONGEST_WAIT)
    }

    /// Completes "Services can't be watched: ...".
    pub fn describe(&self) -> String {
        match self {
            Self::Expired => "they changed too much while they were listed".to_owned(),
            Self::TooNew => "the API server lags behind, or was restored from a backup".to_owned(),
            Self::NotStreamed => "the API server does not stream lists".to_owned(),
            Self::BrokenOff => "the API server's list was incomplete".to_owned(),
            Self::NoAnswer(patience) => format!("no response within {} s", patience.as_secs()),
            Self::Refused(status) => match status.code {
                401 => "the API server doesn't accept the credentials; is the token or \
                        certificate valid, and of this cluster?"
                    .to_owned(),
                403 => format!(
                    "{}; give this account its ClusterRole: deploy/kustomize/base/role.yaml is the agent's, \
                     deploy/kustomize/controller/role.yaml the controller's",
                    one_line(&status.message)
                ),
                code => format!("the API server returned {code}: {}", one_line(&status.message)),
            },
            Self::Failed(cause) => cause.clone(),
        }
    }
}

impl From<String> for Trouble {
    fn from(cause: String) -> Self {
        Self::Failed(cause)
    }
}

/// A message of unknown origin, fit for a log.
pub(crate) fn one_line(message: &str) -> String {
    let start: String = message.chars().take(LONGEST_MESSAGE).collect();
    let printable = start.replace(|c: char| c.is_control() && !c.is_whitespace(), "");
    printable.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a connection has ended before its response, as happens when a server stops.
pub(crate) fn is_cut_off(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let is_incomplete =
            error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message);
        if kind == Some(io::ErrorKind::UnexpectedEof) || is_incomplete {
            return true;
        }
        cause = error.source();
    }
    false
}

/// What lies under the layers of an HTTP client.
pub fn root_cause(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, message: &str) -> String {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        Trouble::of_status(Box::new(status)).describe()
    }

    #[test]
    fn refusals_say_how_to_fix_them() {
        for (code, message, expected) in [
            (401, "Unauthorized", "is the token or certificate valid, and of this cluster?"),
            (403, "services is forbidden", "give this account its ClusterRole"),
            (502, "<html>\n  <title>Bad\tGateway", "returned 502: <html> <title>Bad Gateway"),
        ] {
            let described = refused(code, message);
            assert!(described.contains(expected), "{described}");
        }
    }

    #[test]
    fn a_message_of_any_size_is_one_line() {
        let described = refused(500, &"\u{1b}[2J\r\n".repeat(1000));
        assert!(!described.chars().any(char::is_control), "{described:?}");
        assert!(described.chars().count() < LONGEST_MESSAGE + 50, "{described:?}");
    }
}
