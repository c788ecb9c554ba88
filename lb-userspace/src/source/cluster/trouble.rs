//! What keeps a kind of objects from being watched, in words for whoever can mend it.

use std::error::Error as _;

use kube::Error;
use kube::core::Status;

/// Why a list or watch has ended before its time.
#[derive(Debug)]
pub enum Trouble {
    /// The version that we know is no longer in the server's window: list anew.
    Expired,
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
        if status.code == 410 { Self::Expired } else { Self::Refused(status) }
    }

    /// Completes "Services can't be watched: ...".
    pub fn describe(&self) -> String {
        match self {
            Self::Expired => "they changed too much while they were listed".to_owned(),
            Self::Refused(status) => match status.code {
                401 => "the API server doesn't accept the credentials; is the token or \
                        certificate valid, and of this cluster?"
                    .to_owned(),
                403 => format!(
                    "{}; give this account the ClusterRole of deploy/kustomize/base/role.yaml",
                    status.message
                ),
                _ => format!("the API server answers {}: {}", status.code, status.message),
            },
            Self::Failed(cause) => cause.clone(),
        }
    }
}

/// What lies under the layers of an HTTP client.
fn root_cause(error: &Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said = error.to_string();
        cause = error.source();
    }
    said
}
