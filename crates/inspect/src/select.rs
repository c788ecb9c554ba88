//! Selects Services by name.

use std::fmt::{self, Display};
use std::str::FromStr;

use lb_rules::model::ServiceName;

/// Selects Services by namespace, name, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub namespace: Option<String>,
    pub name: Option<String>,
    /// A port's name or number.
    pub port: Option<String>,
}

impl Selector {
    /// `namespace` applies to names without one.
    pub fn within(self, namespace: Option<&str>) -> Self {
        let namespace = self.namespace.or_else(|| namespace.map(str::to_owned));
        Self { namespace, ..self }
    }

    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    pub fn matches(&self, service: &ServiceName) -> bool {
        let is = |wanted: &Option<String>, found| wanted.as_ref().is_none_or(|w| w == found);
        is(&self.namespace, &service.namespace) && is(&self.name, &service.name)
    }
}

impl FromStr for Selector {
    type Err = String;

    /// Parses `NAME` or `NAMESPACE/NAME`, optionally with `:PORT`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (service, port) = match text.split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (text, None),
        };
        let (namespace, name) = match service.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, service),
        };
        let parts = [namespace.unwrap_or("x"), name, port.unwrap_or("x")];
        if parts.iter().any(|part| part.is_empty() || part.contains('/')) {
            return Err("not a Service's name, such as default/web".to_owned());
        }
        let own = |part: &str| part.to_owned();
        Ok(Self { namespace: namespace.map(own), name: Some(own(name)), port: port.map(own) })
    }
}

impl Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |part: &Option<String>| part.clone().unwrap_or_else(|| "*".to_owned());
        write!(f, "{}/{}", part(&self.namespace), part(&self.name))?;
        match &self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(text: &str) -> Selector {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_may_include_a_namespace_and_a_port() {
        let web = ServiceName::new("shop", "web");
        assert!(selector("web").matches(&web) && selector("shop/web").matches(&web));
        assert!(!selector("other/web").matches(&web) && !selector("shop/api").matches(&web));
        assert!(!selector("web").within(Some("other")).matches(&web));
        assert!(selector("shop/web").within(Some("other")).matches(&web), "it says its own");
        assert_eq!(selector("shop/web:http").port.as_deref(), Some("http"));
        assert!(Selector::default().matches(&web) && Selector::default().is_everything());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", "/", "shop/", "/web", "a/b/c", "web:", "shop/web:"] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }
}
