//! The objects, and what they mean.

use std::collections::BTreeSet;

use super::{Delta, Settings};
use crate::model::{Object, ObjectRef};

/// All objects and their meaning.
#[derive(Debug)]
pub struct Model {
    settings: Settings,
}

impl Model {
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Adds or replaces an object. [`Self::settle`] computes what that changes.
    pub fn apply(&mut self, object: Object) {
        let _ = (&self.settings, object);
    }

    pub fn delete(&mut self, reference: &ObjectRef) {
        let _ = reference;
    }

    /// What has changed since the last call.
    pub fn settle(&mut self) -> Delta {
        Delta::default()
    }

    /// The Secrets that Ingresses of our class refer to, whether they exist or not, and that of the settings. The
    /// source watches those by name that are not of type `kubernetes.io/tls`.
    pub fn secrets(&self) -> BTreeSet<ObjectRef> {
        BTreeSet::new()
    }
}
