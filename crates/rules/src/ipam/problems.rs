//! Problems of the fields of pools and advertisements, found while they are read.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::announcement::AnnouncementScope;
use super::range::Range;
use super::selector::Selector;

/// As defaults of CustomResourceDefinitions set it.
pub fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[derive(Default)]
pub(super) struct Problems(Vec<(String, String)>);

impl Problems {
    pub fn add(&mut self, field: &str, message: String) {
        self.0.push((field.to_owned(), message));
    }

    /// Field and message of each.
    pub(crate) fn into_list(self) -> Vec<(String, String)> {
        self.0
    }

    pub fn selectors<'a>(
        &mut self,
        field: &str,
        selectors: impl Iterator<Item = &'a LabelSelector>,
    ) -> Vec<Selector> {
        let mut read = Vec::new();
        for selector in selectors {
            let (selector, problem) = Selector::read(selector);
            read.push(selector);
            self.0.extend(problem.map(|problem| (field.to_owned(), problem)));
        }
        read
    }

    pub fn scope<'a>(
        &mut self,
        (nodes_field, nodes): (&str, impl Iterator<Item = &'a LabelSelector>),
        (interfaces_field, interfaces): (&str, &[String]),
    ) -> AnnouncementScope {
        let nodes = self.selectors(nodes_field, nodes);
        let (interfaces, problem) = AnnouncementScope::read_interfaces(interfaces);
        self.0.extend(problem.map(|problem| (interfaces_field.to_owned(), problem)));
        AnnouncementScope { nodes, interfaces, ..AnnouncementScope::default() }
    }

    /// Whether there is no field that this version does not know. Such a field may restrict what the
    /// object allows, so that the object must not be used. A field without a value does not.
    pub fn understands(
        &mut self,
        part: &str,
        unknown: &BTreeMap<String, Value>,
        consequence: &str,
    ) -> bool {
        let mut is_understood = true;
        for (name, _) in unknown.iter().filter(|(_, value)| !is_unset(value)) {
            is_understood = false;
            let message = format!("is not known to this version and may restrict: {consequence}");
            self.add(&format!("{part}.{name}"), message);
        }
        is_understood
    }

    pub fn ranges(&mut self, texts: &[String]) -> Vec<Range> {
        let mut ranges = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            match Range::parse(text) {
                Ok(range) => ranges.push(range),
                Err(why) => {
                    let field = format!("spec.addresses[{index}]");
                    self.0.push((field, format!("{text:?} {why}; not used")));
                }
            }
        }
        ranges
    }
}
