//! Telling people what is wrong with an object.
//!
//! Whoever notices something posts it here, once, and again only if it was mended in between; that
//! it was is posted, too.
//! Where it goes is the source's business: with manifests to the log, with a cluster to the
//! object's Events, too.

use std::fmt::{self, Display};

use crate::model::ObjectRef;

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
    /// What kept a Service out is mended, and it is in force.
    Served,
    /// The same of what did not fit into this node's maps.
    RoomFound,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Self::NotServed => "NotServed",
            Self::NoRoom => "NoRoom",
            Self::FailedToStartServiceHealthcheck => "FailedToStartServiceHealthcheck",
            Self::Served => "Served",
            Self::RoomFound => "RoomFound",
        }
    }

    /// Whether it is true of this node only; otherwise all nodes notice the same.
    pub fn is_of_this_node(self) -> bool {
        match self {
            Self::NotServed | Self::Served => false,
            Self::NoRoom | Self::FailedToStartServiceHealthcheck | Self::RoomFound => true,
        }
    }

    pub fn is_trouble(self) -> bool {
        match self {
            Self::NotServed | Self::NoRoom | Self::FailedToStartServiceHealthcheck => true,
            Self::Served | Self::RoomFound => false,
        }
    }

    /// As the API has it.
    pub fn event_type(self) -> &'static str {
        if self.is_trouble() { "Warning" } else { "Normal" }
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
        let reason = notice.reason.name();
        if notice.reason.is_trouble() {
            tracing::warn!(%reason, "{notice}");
        } else {
            tracing::info!(%reason, "{notice}");
        }
    }
}
