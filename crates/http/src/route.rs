//! Rules, and the routes that they lead to.

use std::fmt::{self, Display};
use std::sync::Arc;

use http::{HeaderName, StatusCode};

use crate::automaton::Automaton;
use crate::host::HostPattern;
use crate::path::PathPattern;
use crate::policy::RoutePolicy;
use crate::upstream::UpstreamName;

/// The object that a rule comes from. Named in logs, metrics and explanations.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteOwner {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Display for RouteOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Requests for these hosts and paths take this route.
#[derive(Clone, Debug)]
pub struct RouteRule {
    pub host: HostPattern,
    pub path: PathPattern,
    pub route: Arc<Route>,
}

/// What happens to the requests of a rule.
#[derive(Clone, Debug)]
pub struct Route {
    pub owner: RouteOwner,
    pub action: Action,
    /// Routes that get a part of the requests instead of this one.
    pub canaries: Vec<Canary>,
    pub policy: Arc<RoutePolicy>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Forward(UpstreamName),
    /// The rule is valid, but cannot be served: its Service or port does not exist, for example.
    Respond {
        status: StatusCode,
        /// For logs and explanations, not for clients.
        reason: Arc<str>,
    },
}

/// A route that gets a part of another route's requests. The first condition that decides, in the order of the
/// fields, wins.
#[derive(Clone, Debug)]
pub struct Canary {
    pub header: Option<CanaryHeader>,
    /// The cookie's value `always` selects the canary, and `never` excludes it.
    pub cookie: Option<Arc<str>>,
    /// The canary's share of all other requests is `weight` of `weight_total`.
    pub weight: u32,
    pub weight_total: u32,
    /// Its own canaries are ignored.
    pub route: Arc<Route>,
}

#[derive(Clone, Debug)]
pub struct CanaryHeader {
    pub name: HeaderName,
    pub value: CanaryValue,
}

#[derive(Clone, Debug)]
pub enum CanaryValue {
    /// `always` selects the canary, and `never` excludes it.
    AlwaysOrNever,
    /// This value selects the canary. Other values decide nothing.
    Exact(Arc<str>),
    /// Values that match select the canary. Other values decide nothing.
    Pattern(ValueRegex),
}

/// An expression for values of a header, which matches anywhere in them.
#[derive(Clone)]
pub struct ValueRegex {
    text: Arc<str>,
    automaton: Automaton,
}

/// A longer value decides nothing: each canary costs a search.
const MOST_VALUE_OCTETS: usize = 8 << 10;

impl ValueRegex {
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        Ok(Self { text: text.into(), automaton: Automaton::anywhere(text)? })
    }

    pub fn matches(&self, value: &[u8]) -> bool {
        value.len() <= MOST_VALUE_OCTETS && self.automaton.matches(value)
    }
}

impl fmt::Debug for ValueRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ValueRegex").field(&self.text).finish()
    }
}
