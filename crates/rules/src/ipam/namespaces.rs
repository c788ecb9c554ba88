//! The labels of the namespaces, by which pools select Services.

use std::collections::BTreeMap;

use super::Labels;

/// Every namespace has it; of namespaces whose objects are not known it is the only one.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

#[derive(Debug, Default)]
pub struct Namespaces(BTreeMap<String, Labels>);

impl Namespaces {
    /// Creates an entry for a namespace, if there is none.
    pub fn note(&mut self, name: &str) {
        if !self.0.contains_key(name) {
            self.set(name, Labels::new());
        }
    }

    pub fn set(&mut self, name: &str, mut labels: Labels) {
        labels.insert(NAMESPACE_NAME.to_owned(), name.to_owned());
        self.0.insert(name.to_owned(), labels);
    }

    pub fn labels(&self, name: &str) -> &Labels {
        static NONE: Labels = Labels::new();
        self.0.get(name).unwrap_or(&NONE)
    }
}
