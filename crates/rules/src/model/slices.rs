//! EndpointSlices by the Service that they belong to.

use std::collections::{BTreeMap, BTreeSet};

use super::Slice;
use super::types::ServiceName;

#[derive(Debug, Default)]
pub struct Slices {
    /// By Service, in the order of their names.
    slices: BTreeMap<ServiceName, Vec<Slice>>,
    /// The Service of each slice; its label may change.
    owners: BTreeMap<ServiceName, ServiceName>,
}

impl Slices {
    /// Adds or replaces a slice. Returns the Services that it concerns.
    pub fn apply(&mut self, slice: Slice) -> BTreeSet<ServiceName> {
        let mut affected = self.remove(&slice.name);
        if let Some(owner) = slice.service.clone() {
            self.owners.insert(slice.name.clone(), owner.clone());
            let slices = self.slices.entry(owner.clone()).or_default();
            let index = slices.partition_point(|other| other.name < slice.name);
            // Most Services have only one.
            slices.reserve_exact(1);
            slices.insert(index, slice);
            affected.insert(owner);
        }
        affected
    }

    /// Returns the Services that it concerned.
    pub fn remove(&mut self, slice: &ServiceName) -> BTreeSet<ServiceName> {
        let Some(owner) = self.owners.remove(slice) else {
            return BTreeSet::new();
        };
        if let Some(slices) = self.slices.get_mut(&owner) {
            slices.retain(|other| other.name != *slice);
            if slices.is_empty() {
                self.slices.remove(&owner);
            }
        }
        BTreeSet::from([owner])
    }

    pub fn get(&self, name: &ServiceName) -> Option<&Slice> {
        let owner = self.owners.get(name)?;
        self.slices.get(owner)?.iter().find(|slice| slice.name == *name)
    }

    /// `None`: the Service has no slices.
    pub fn of(&self, service: &ServiceName) -> Option<&[Slice]> {
        self.slices.get(service).map(Vec::as_slice)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ServiceName, &[Slice])> {
        self.slices.iter().map(|(service, slices)| (service, slices.as_slice()))
    }
}
