//! What keeps a kind of objects from being watched, in words for whoever can mend it.

use kube::Error;
use kube::core::Status;

/// Why a list or watch has ended before its time.
#[derive(Debug)]
pub enum Trouble {
    /// The server does not have the requested version any more.
    Expired,
    /// The server does not have the requested version yet, and perhaps never will.
    TooNew,
    /// The server ignores the request to begin a watch with all objects.
    NotStreamed,
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
    pub fn is_invalid_request(&self) -> bool {
        matches!(self, Self::Refused(status) if [400, 422].contains(&status.code))
    }

    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 401)
    }

    /// Completes "Services can't be watched: ...".
    pub fn describe(&self) -> String {
        match self {
            Self::Expired => "they changed too much while they were listed".to_owned(),
            Self::TooNew => "the API server lags behind, or was restored from a backup".to_owned(),
            Self::NotStreamed => "the API server does not stream lists".to_owned(),
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

impl From<String> for Trouble {
    fn from(cause: String) -> Self {
        Self::Failed(cause)
    }
}

/// What lies under the layers of an HTTP client.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said = error.to_string();
        cause = error.source();
    }
    said
}
