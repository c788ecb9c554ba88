//! Where the addresses of a pool are announced.

use std::sync::LazyLock;

use glob::Pattern;

use super::selector::{Labels, Selector, any_selects};

/// A node announces an address on an interface if one of the scopes includes both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    pub scopes: Vec<AnnouncementScope>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncementScope {
    /// A node must match one of them; empty: all nodes.
    pub nodes: Vec<Selector>,
    /// Names or shell patterns; empty: the interfaces with a prefix that contains the address.
    pub interfaces: Vec<Pattern>,
    /// Whether an address of which no interface has a prefix is announced on all of them, because
    /// routers may look for it there.
    pub includes_routed: bool,
    /// A Service must match one of them; empty: all.
    pub services: Vec<Selector>,
}

impl Announcement {
    /// By all nodes.
    pub fn everywhere() -> &'static Self {
        static EVERYWHERE: LazyLock<Announcement> =
            LazyLock::new(|| Announcement { scopes: vec![AnnouncementScope::default()] });
        &EVERYWHERE
    }

    /// The scopes that include a node and a Service with these labels.
    pub fn of_node<'a>(
        &'a self,
        node: &'a Labels,
        service: &'a Labels,
    ) -> impl Iterator<Item = &'a AnnouncementScope> {
        let scopes = self.scopes.iter();
        scopes.filter(|scope| {
            any_selects(&scope.nodes, node) && any_selects(&scope.services, service)
        })
    }
}

impl AnnouncementScope {
    /// Whether it names its interfaces. Otherwise those qualify that have a prefix with the address.
    pub fn names_interfaces(&self) -> bool {
        !self.interfaces.is_empty()
    }

    /// Whether one of its names is this interface's.
    pub fn names(&self, interface: &str) -> bool {
        self.interfaces.iter().any(|pattern| pattern.matches(interface))
    }

    /// With what can't be read in them.
    pub(crate) fn read_interfaces(names: &[String]) -> (Vec<Pattern>, Option<String>) {
        let mut problem = None;
        let patterns = names.iter().map(|name| {
            Pattern::new(name).unwrap_or_else(|error| {
                problem = Some(format!("{name:?} is not a name or pattern of interfaces: {error}"));
                // A name that no interface has.
                Pattern::default()
            })
        });
        (patterns.collect(), problem)
    }
}
