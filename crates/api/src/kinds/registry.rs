//! The kinds of one server: those of this crate, and those that its embedder declares.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, ensure};

use super::ApiKind;

/// Clones share the list.
#[derive(Clone)]
pub struct KindRegistry(Arc<[&'static ApiKind]>);

impl KindRegistry {
    /// The kinds of this crate, then the declared ones. Fails if two of a group share a name.
    pub fn with(declared: &[&'static ApiKind]) -> Result<Self> {
        let all: Arc<[&'static ApiKind]> =
            super::built_in_kinds().iter().chain(declared.iter().copied()).collect();
        let mut names = BTreeSet::new();
        for kind in &*all {
            for name in [kind.kind, kind.plural] {
                let is_new = names.insert((kind.group, name));
                ensure!(is_new, "{name} in group {:?} is declared twice", kind.group);
            }
        }
        Ok(Self(all))
    }

    /// In the order of discovery.
    pub fn all(&self) -> impl Iterator<Item = &'static ApiKind> + '_ {
        self.0.iter().copied()
    }

    /// By group, version and plural, as in a request's path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&'static ApiKind> {
        self.all().find(|kind| (kind.group, kind.version, kind.plural) == (group, version, plural))
    }

    /// By API version and kind, as in a manifest.
    pub fn find_kind(&self, api_version: &str, name: &str) -> Option<&'static ApiKind> {
        self.all().find(|kind| kind.kind == name && kind.api_version() == api_version)
    }

    /// The groups of declared kinds, each once.
    pub(crate) fn declared_groups(&self) -> Vec<&'static str> {
        let declared = self.all().filter(|kind| kind.declared.is_some()).map(|kind| kind.group);
        declared.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Group and version of each kind, each once, in the order of discovery.
    pub(crate) fn group_versions(&self) -> Vec<(&'static str, &'static str)> {
        let mut all = Vec::new();
        for kind in self.all() {
            if !all.contains(&(kind.group, kind.version)) {
                all.push((kind.group, kind.version));
            }
        }
        all
    }
}

impl Default for KindRegistry {
    fn default() -> Self {
        Self(super::built_in_kinds().iter().collect())
    }
}
