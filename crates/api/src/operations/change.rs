//! The steps common to all writes of an object: rules, allocation, managed fields, storage.

use jiff::Timestamp;
use serde_json::Value;

use super::allocations::{AllocationLedger, name_owner};
use super::{RequestTarget, admission, metadata, metadata_text, shown};
use crate::failure::ApiFailure;
use crate::kinds::{self, ApiKind, Subresource};
use crate::patch::apply;
use crate::storage::{StoredObject, Transaction, estimate_size};

/// The limit of a stored object in bytes: that of etcd's requests in a cluster. It also bounds what
/// patches cost.
const MAX_OBJECT_BYTES: usize = 3 << 19;

/// A write in progress.
pub(super) struct ObjectWrite<'a, 'b> {
    pub transaction: &'a mut Transaction<'b>,
    pub ledger: &'a mut AllocationLedger,
    pub kind: &'static ApiKind,
    pub key: &'a str,
    pub dry_run: bool,
    /// See [`RequestTarget`].
    pub keeps_metadata: bool,
    pub now: Timestamp,
}

/// The manager that `managedFields` records for the write.
pub(super) enum FieldManager<'a> {
    /// The client that created, replaced or patched the object.
    Update(&'a str),
    /// Server-side apply has already recorded it.
    Applied,
}

/// An object after a write, with the kind's warnings about it.
#[derive(Debug)]
pub(super) struct WrittenObject {
    pub object: Value,
    pub warnings: Vec<String>,
}

impl ObjectWrite<'_, '_> {
    /// Stores a new object. It has its name, namespace and defaults.
    pub(crate) fn create_object(
        mut self,
        mut object: Value,
        manager: &FieldManager<'_>,
    ) -> Result<WrittenObject, ApiFailure> {
        self.check_namespace(&object)?;
        metadata::set_creation_fields(&mut object, self.now)?;
        // Before all that the server adds, which no client owns.
        object = self.manage(None, object, Subresource::None, manager);
        admission::admit_default_class(self.transaction, self.kind, &mut object);
        self.kind.rules.prepare(&mut object, None, Subresource::None);
        let warnings = self.check(&object, None)?;
        // After validation, as in a cluster: a client that only looks for this failure learns what else is wrong.
        if let Some(stored) = self.transaction.get(self.key) {
            let mut failure = ApiFailure::already_exists(self.kind, metadata_text(&object, "name"));
            if metadata::is_being_deleted(&stored.object()) {
                failure.message = format!("object is being deleted: {}", failure.message);
            }
            return Err(failure);
        }
        let object = self.store(object, None)?;
        Ok(WrittenObject { object, warnings })
    }

    /// Stores the new state of an existing object.
    pub(crate) fn update_object(
        mut self,
        stored: &StoredObject,
        mut object: Value,
        subresource: Subresource,
        manager: &FieldManager<'_>,
    ) -> Result<WrittenObject, ApiFailure> {
        let old = shown(self.kind, stored);
        metadata::restore_server_fields(&mut object, &old);
        if self.keeps_metadata {
            metadata::restore_client_fields(&mut object, &old);
            if matches!(manager, FieldManager::Update(_)) {
                metadata::restore_managed_fields(&mut object, &old);
            }
        }
        object = self.manage(Some(&old), object, subresource, manager);
        self.kind.rules.prepare(&mut object, Some(&old), subresource);
        let warnings = self.check(&object, Some(&old))?;
        if is_same(&old, &object) {
            return Ok(WrittenObject { object: old, warnings });
        }
        let object = if metadata::is_being_deleted(&object) && metadata::has_no_finalizers(&object)
        {
            self.remove_object(object)?
        } else {
            self.store(object, Some(&old))?
        };
        Ok(WrittenObject { object, warnings })
    }

    /// Removes an object that has no finalizers. Returns its last state.
    pub(crate) fn remove_object(self, mut object: Value) -> Result<Value, ApiFailure> {
        let mut hold = self.ledger.begin_allocations(name_owner(self.kind, &object));
        self.kind.rules.release(&object, &mut hold);
        if self.dry_run {
            return Ok(object);
        }
        hold.commit_allocations();
        if let Some(last) = self.transaction.delete(self.key) {
            object["metadata"]["resourceVersion"] = last.revision.to_string().into();
        }
        Ok(object)
    }

    fn check(&self, object: &Value, old: Option<&Value>) -> Result<Vec<String>, ApiFailure> {
        let mut violations = kinds::metadata::validate_metadata(object, old, self.kind.namespaced);
        violations.extend(self.kind.rules.validate(object, old));
        if violations.is_empty() {
            Ok(self.kind.rules.warnings(object, old))
        } else {
            Err(ApiFailure::invalid(self.kind, metadata_text(object, "name"), &violations))
        }
    }

    fn manage(
        &self,
        old: Option<&Value>,
        object: Value,
        subresource: Subresource,
        manager: &FieldManager<'_>,
    ) -> Value {
        match manager {
            FieldManager::Applied => object,
            FieldManager::Update(manager) => apply::update_managed_fields(
                self.kind,
                old,
                &object,
                manager,
                subresource,
                self.now,
            ),
        }
    }

    /// Allocates addresses and ports, and stores the object.
    fn store(&mut self, mut object: Value, old: Option<&Value>) -> Result<Value, ApiFailure> {
        let mut hold = self.ledger.begin_allocations(name_owner(self.kind, &object));
        let size = estimate_size(&object);
        if size > MAX_OBJECT_BYTES {
            let why = format!(
                "{} {:?} has about {size} bytes, the limit is {MAX_OBJECT_BYTES}",
                self.kind.plural,
                metadata_text(&object, "name")
            );
            return Err(ApiFailure::new(413, "RequestEntityTooLarge", why));
        }
        self.kind.rules.allocate(&mut object, old, &mut hold).map_err(|violation| {
            ApiFailure::invalid(self.kind, metadata_text(&object, "name"), &[violation])
        })?;
        if self.dry_run {
            return Ok(object);
        }
        hold.commit_allocations();
        let stored = match self.kind.rules.stored_as() {
            None => object,
            Some(_) => self.kind.rules.to_stored(&object),
        };
        let stored = self.transaction.put(self.key, stored);
        Ok(shown(self.kind, &stored))
    }

    fn check_namespace(&self, object: &Value) -> Result<(), ApiFailure> {
        if !self.kind.namespaced {
            return Ok(());
        }
        let name = metadata_text(object, "namespace");
        let namespaces = super::core("Namespace")?;
        let Some(namespace) = self.transaction.get(&super::storage_key(namespaces, None, name))
        else {
            return Err(ApiFailure::not_found(namespaces, name));
        };
        if metadata::is_being_deleted(&namespace.object()) {
            let why = format!(
                "unable to create new content in namespace {name} because it is being terminated"
            );
            let failure = ApiFailure::forbidden(self.kind, metadata_text(object, "name"), &why);
            // Controllers look for this cause, and stop trying.
            let message = format!("namespace {name} is being terminated");
            return Err(failure.because("NamespaceTerminating", &message, "metadata.namespace"));
        }
        Ok(())
    }
}

/// Checks the preconditions of the client: the revision and uid that it read must be the stored
/// ones.
pub(super) fn check_preconditions(
    target: &RequestTarget,
    stored: &StoredObject,
    revision: Option<&str>,
    uid: Option<&str>,
) -> Result<(), ApiFailure> {
    let metadata = stored.metadata();
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    let (name, actual) = (text("name"), text("uid"));
    if let Some(uid) = uid.filter(|uid| *uid != actual) {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
        );
        return Err(ApiFailure::conflict(target.kind, name, &why));
    }
    if revision.is_some_and(|revision| revision != stored.revision.to_string()) {
        return Err(ApiFailure::modified(target.kind, name));
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
