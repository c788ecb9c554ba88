//! Telling people what is wrong with an object.
//!
//! Whoever notices something posts it here, once, and again only if it was mended in between.
//! Where it goes is the source's business: with manifests to the log, with a cluster to the
//! object's Events, too.

use std::fmt::{self, Display};

use crate::source::ObjectRef;

/// Something that a person should know about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `None`: it concerns no object of the API.
    pub about: Option<About>,
    pub reason: Reason,
    pub message: String,
}

/// Which object it is, beyond its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    pub reference: ObjectRef,
    /// Empty where objects have none, as in files.
    pub uid: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object breaks the API's rules, or claims what is another's.
    NotServed,
    /// It does not fit into this node's maps.
    NoRoom,
    /// A port of this node can't be bound for it. The name is kube-proxy's.
    FailedToStartServiceHealthcheck,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Self::NotServed => "NotServed",
            Self::NoRoom => "NoRoom",
            Self::FailedToStartServiceHealthcheck => "FailedToStartServiceHealthcheck",
        }
    }

    /// Whether it is true of this node only; otherwise all nodes notice the same.
    pub fn is_of_this_node(self) -> bool {
        match self {
            Self::NotServed => false,
            Self::NoRoom | Self::FailedToStartServiceHealthcheck => true,
        }
    }
}

impl Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.about {
            Some(about) => write!(f, "{}: {}", about.reference, self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Where notices go. Posting never waits.
pub trait Notices: Send + Sync {
    fn post(&self, notice: Notice);
}

/// To the log.
pub struct Log;

impl Notices for Log {
    fn post(&self, notice: Notice) {
        tracing::warn!(reason = %notice.reason.name(), "{notice}");
    }
}
