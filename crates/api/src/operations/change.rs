//! The steps common to all writes of an object: rules, allocation, managed fields, storage.

use jiff::Timestamp;
use serde_json::Value;

use super::allocations::{Ledger, owner};
use super::{Target, admission, metadata, shown, text};
use crate::failure::Failure;
use crate::kinds::{self, Kind, Subresource};
use crate::patch::apply;
use crate::storage::{Stored, Transaction, rough_size};

/// The limit of a stored object in bytes: that of etcd's requests in a cluster. It also bounds what
/// patches cost.
const OBJECT: usize = 3 << 19;

/// A write in progress.
pub(super) struct Change<'a, 'b> {
    pub transaction: &'a mut Transaction<'b>,
    pub ledger: &'a mut Ledger,
    pub kind: &'static Kind,
    pub key: &'a str,
    pub dry_run: bool,
    /// See [`Target`].
    pub keeps_metadata: bool,
    pub now: Timestamp,
}

/// The manager that `managedFields` records for the write.
pub(super) enum Manager<'a> {
    /// The client that created, replaced or patched the object.
    Update(&'a str),
    /// Server-side apply has already recorded it.
    Applied,
}

/// An object after a write, with the kind's warnings about it.
#[derive(Debug)]
pub(super) struct Written {
    pub object: Value,
    pub warnings: Vec<String>,
}

impl Change<'_, '_> {
    /// Stores a new object. It has its name, namespace and defaults.
    pub fn create(mut self, mut object: Value, manager: &Manager<'_>) -> Result<Written, Failure> {
        self.check_namespace(&object)?;
        admission::admit(self.transaction, self.kind, &mut object);
        metadata::begin(&mut object, self.now)?;
        self.kind.rules.prepare(&mut object, None, Subresource::None);
        let warnings = self.check(&object, None)?;
        let object = self.manage(None, object, Subresource::None, manager);
        let object = self.store(object, None)?;
        Ok(Written { object, warnings })
    }

    /// Stores the new state of an existing object.
    pub fn update(
        mut self,
        stored: &Stored,
        mut object: Value,
        subresource: Subresource,
        manager: &Manager<'_>,
    ) -> Result<Written, Failure> {
        let old = shown(self.kind, stored);
        metadata::carry_over(&mut object, &old);
        if self.keeps_metadata {
            metadata::restore(&mut object, &old);
            if matches!(manager, Manager::Update(_)) {
                metadata::restore_managers(&mut object, &old);
            }
        }
        self.kind.rules.prepare(&mut object, Some(&old), subresource);
        let warnings = self.check(&object, Some(&old))?;
        let object = self.manage(Some(&old), object, subresource, manager);
        if is_same(&old, &object) {
            return Ok(Written { object: old, warnings });
        }
        let object = if metadata::is_being_deleted(&object) && metadata::is_free_to_go(&object) {
            self.remove(object)?
        } else {
            self.store(object, Some(&old))?
        };
        Ok(Written { object, warnings })
    }

    /// Removes an object that has no finalizers. Returns its last state.
    pub fn remove(self, mut object: Value) -> Result<Value, Failure> {
        let mut hold = self.ledger.hold(owner(self.kind, &object));
        self.kind.rules.release(&object, &mut hold);
        if self.dry_run {
            return Ok(object);
        }
        hold.keep();
        if let Some(last) = self.transaction.delete(self.key) {
            object["metadata"]["resourceVersion"] = last.revision.to_string().into();
        }
        Ok(object)
    }

    fn check(&self, object: &Value, old: Option<&Value>) -> Result<Vec<String>, Failure> {
        let mut violations = kinds::metadata::validate(object, old, self.kind.namespaced);
        violations.extend(self.kind.rules.validate(object, old));
        if violations.is_empty() {
            Ok(self.kind.rules.warnings(object, old))
        } else {
            Err(Failure::invalid(self.kind, text(object, "name"), &violations))
        }
    }

    fn manage(
        &self,
        old: Option<&Value>,
        object: Value,
        subresource: Subresource,
        manager: &Manager<'_>,
    ) -> Value {
        match manager {
            Manager::Applied => object,
            Manager::Update(manager) => {
                apply::update(self.kind, old, &object, manager, subresource, self.now)
            }
        }
    }

    /// Allocates addresses and ports, and stores the object.
    fn store(&mut self, mut object: Value, old: Option<&Value>) -> Result<Value, Failure> {
        let mut hold = self.ledger.hold(owner(self.kind, &object));
        let size = rough_size(&object);
        if size > OBJECT {
            let why = format!(
                "{} {:?} has about {size} bytes, the limit is {OBJECT}",
                self.kind.plural,
                text(&object, "name")
            );
            return Err(Failure::new(413, "RequestEntityTooLarge", why));
        }
        self.kind.rules.allocate(&mut object, old, &mut hold).map_err(|violation| {
            Failure::invalid(self.kind, text(&object, "name"), &[violation])
        })?;
        if self.dry_run {
            return Ok(object);
        }
        hold.keep();
        let stored = match self.kind.rules.stored_as() {
            None => object,
            Some(_) => self.kind.rules.to_stored(&object),
        };
        let stored = self.transaction.put(self.key, stored);
        Ok(shown(self.kind, &stored))
    }

    fn check_namespace(&self, object: &Value) -> Result<(), Failure> {
        if !self.kind.namespaced {
            return Ok(());
        }
        let name = text(object, "namespace");
        let namespaces = super::core("Namespace")?;
        let Some(namespace) = self.transaction.get(&super::key(namespaces, None, name)) else {
            return Err(Failure::not_found(namespaces, name));
        };
        if metadata::is_being_deleted(&namespace.object()) {
            let why = format!(
                "unable to create new content in namespace {name} because it is being terminated"
            );
            return Err(Failure::forbidden(self.kind, text(object, "name"), &why));
        }
        Ok(())
    }
}

/// Checks the preconditions of the client: the revision and uid that it read must be the stored
/// ones.
pub(super) fn check_read(
    target: &Target,
    stored: &Stored,
    revision: Option<&str>,
    uid: Option<&str>,
) -> Result<(), Failure> {
    let metadata = stored.metadata();
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    let (name, actual) = (text("name"), text("uid"));
    if let Some(uid) = uid.filter(|uid| *uid != actual) {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
        );
        return Err(Failure::conflict(target.kind, name, &why));
    }
    if revision.is_some_and(|revision| revision != stored.revision.to_string()) {
        return Err(Failure::modified(target.kind, name));
    }
    Ok(())
}

/// A change of only the times in managed fields is not written.
fn is_same(old: &Value, new: &Value) -> bool {
    let without_times = |object: &Value| {
        let mut object = object.clone();
        if let Some(entries) = object["metadata"]["managedFields"].as_array_mut() {
            for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
                entry.remove("time");
            }
        }
        object
    };
    old == new || without_times(old) == without_times(new)
}
