//! Server-side apply and the ownership of fields.
//!
//! A manager owns the fields that it applies. A field that it owned and no longer applies is
//! removed, unless another manager owns it. A manager that changes a field in another way takes it
//! over from all its owners. Applying a value that differs from another owner's is a conflict,
//! unless forced.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fields::FieldSet;
use super::managed::{ManagedEntry, ManagedFields, ManagerName, ManagerOperation};
use super::shape::TypeNode;
use super::typed::{self, FieldChanges};
use crate::kinds::{ApiKind, Subresource};

/// The client whose client-side apply preceded server-side apply.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Metadata that no manager owns.
const UNMANAGED: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// Fields that other managers own with different values.
#[derive(Debug, Clone)]
pub(crate) struct ApplyConflicts(Vec<(ManagedEntry, FieldSet)>);

impl ApplyConflicts {
    /// The causes for a Status.
    pub fn causes(&self) -> Vec<Value> {
        let one = |entry: &ManagedEntry, path: String| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {}", entry.describe()),
                "field": path,
            })
        };
        let all = self.0.iter();
        all.flat_map(|(entry, fields)| {
            fields.list_paths().into_iter().map(|path| one(entry, path)).collect::<Vec<_>>()
        })
        .collect()
    }

    fn without(self, allowed: &FieldSet) -> Option<Self> {
        let rest: Vec<_> = self
            .0
            .into_iter()
            .map(|(entry, fields)| (entry, fields.difference(allowed)))
            .filter(|(_, fields)| !fields.is_empty())
            .collect();
        (!rest.is_empty()).then_some(Self(rest))
    }
}

impl fmt::Display for ApplyConflicts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_manager: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (entry, fields) in &self.0 {
            by_manager.entry(entry.describe()).or_default().extend(fields.list_paths());
        }
        let count: usize = by_manager.values().map(Vec::len).sum();
        if let (1, Some((manager, paths))) = (count, by_manager.first_key_value()) {
            let path = &paths[0];
            return write!(
                formatter,
                "Apply failed with 1 conflict: conflict with {manager}: {path}"
            );
        }
        let lines: Vec<String> = by_manager
            .iter()
            .flat_map(|(manager, paths)| {
                let head = format!("conflicts with {manager}:");
                std::iter::once(head).chain(paths.iter().map(|path| format!("- {path}")))
            })
            .collect();
        write!(formatter, "Apply failed with {count} conflicts: {}", lines.join("\n"))
    }
}

/// Applies a configuration to an object, and updates its `managedFields`. `live` is `None` for a
/// new object.
pub(crate) fn apply_server_side(
    kind: &ApiKind,
    live: Option<&Value>,
    applied: &Value,
    manager: &str,
    force: bool,
    subresource: Subresource,
    now: Timestamp,
) -> Result<Value, ApplyConflicts> {
    let write = ManagedWrite::new(kind, manager, ManagerOperation::Apply, subresource, now);
    let conflicts = match write.apply(live, applied, force) {
        Ok(object) => return Ok(object),
        Err(conflicts) => conflicts,
    };
    // kubectl owns what it applied on the client side, if it is unchanged since.
    let own = live.filter(|_| manager == KUBECTL).map(|live| write.last_applied(live));
    match conflicts.clone().without(&own.unwrap_or_default()) {
        Some(rest) => Err(rest),
        None => write.apply(live, applied, true).map_err(|_| conflicts),
    }
}

/// The paths of fields that an object to be applied has, and its kind has not.
pub(crate) fn find_undeclared_fields(kind: &ApiKind, applied: &Value) -> Vec<String> {
    typed::list_undeclared_fields(applied, TypeNode::root(kind))
}

/// Updates the `managedFields` of an object that was created, replaced or patched.
pub(crate) fn update_managed_fields(
    kind: &ApiKind,
    live: Option<&Value>,
    object: &Value,
    manager: &str,
    subresource: Subresource,
    now: Timestamp,
) -> Value {
    ManagedWrite::new(kind, manager, ManagerOperation::Update, subresource, now)
        .update(live, object)
}

struct ManagedWrite {
    node: TypeNode,
    /// The parts that every object of the kind has, even if they are empty.
    parts: &'static [&'static str],
    manager: ManagerName,
    /// The part of the object that this write cannot change, and so cannot own.
    ignored: Option<&'static str>,
    now: Timestamp,
}

impl ManagedWrite {
    fn new(
        kind: &ApiKind,
        manager: &str,
        operation: ManagerOperation,
        subresource: Subresource,
        now: Timestamp,
    ) -> Self {
        let ignored = match subresource {
            Subresource::Status => Some("f:spec"),
            Subresource::None => kind.has_status.then_some("f:status"),
        };
        let manager = ManagerName::new(manager, operation, &kind.api_version(), subresource);
        // In Kubernetes' types; those of declared kinds have only their metadata.
        let parts: &[&str] = if kind.declared.is_none() { &["spec", "status"] } else { &[] };
        Self { node: TypeNode::root(kind), parts, manager, ignored, now }
    }

    fn apply(
        &self,
        live: Option<&Value>,
        applied: &Value,
        force: bool,
    ) -> Result<Value, ApplyConflicts> {
        let mut managed = live.map(ManagedFields::of_object).unwrap_or_default();
        let applied = unmanaged(applied);
        let before = self.state_before(live, &applied);
        if live.is_some() && managed.0.is_empty() {
            let unknown = ManagerName {
                name: BEFORE_FIRST_APPLY.to_owned(),
                operation: ManagerOperation::Update,
                subresource: "",
                ..self.manager.clone()
            };
            managed.set_fields(
                &unknown,
                self.own(typed::collect_fields(&before, self.node)),
                self.now,
            );
        }
        let last = managed.find_entry(&self.manager).map(|entry| entry.fields.clone());
        let all = typed::collect_fields(&applied, self.node);
        managed.set_fields(&self.manager, self.own(all.clone()), self.now);

        let mut merged = typed::merge_applied(&before, &applied, self.node);
        if let Some(last) = last {
            self.prune(&mut merged, &last, &managed, all);
        }
        let changes = typed::compare_fields(&before, &merged, self.node);
        self.take(&mut managed, &changes, force)?;
        self.keep_annotation(live, &applied, &mut merged);
        managed.write_to_object(&mut merged);
        Ok(merged)
    }

    fn update(&self, live: Option<&Value>, object: &Value) -> Value {
        let mut updated = unmanaged(object);
        if ManagedFields::is_reset(object) {
            return updated;
        }
        // A client that does not know managed fields does not intend to remove them.
        let of_object = ManagedFields::of_object(object);
        let mut managed = match live {
            Some(live) if of_object.0.is_empty() => ManagedFields::of_object(live),
            _ => of_object,
        };
        let before = self.state_before(live, &updated);
        // The managers so far are unknown. Ownership starts with the first apply.
        if live.is_some() && managed.0.is_empty() {
            return updated;
        }
        let mut changes = typed::compare_fields(&before, &updated, self.node);
        // What this write cannot change will be restored.
        if let Some(ignored) = self.ignored {
            for fields in [&mut changes.added, &mut changes.modified, &mut changes.removed] {
                fields.remove(&[ignored], true);
            }
        }
        let gone = &changes.removed;
        let changed = changes.modified.union(&changes.added);
        let disowned = changed.union(gone);
        managed.disown(&self.manager.api_version, &disowned, |_| true);
        let before = managed.find_entry(&self.manager).map(|entry| entry.fields.clone());
        let own = before.unwrap_or_default().union(&self.own(changed));
        // Starts from the live entries, so the time of an entry changes only with its fields.
        let mut all = live.map(ManagedFields::of_object).unwrap_or_default();
        self.replace(&mut all, managed, own);
        all.cap_updaters();
        all.write_to_object(&mut updated);
        updated
    }

    /// Takes the other managers' entries from `new`, and sets the manager's own fields. An entry
    /// keeps its time if its fields are unchanged.
    fn replace(&self, all: &mut ManagedFields, new: ManagedFields, own: FieldSet) {
        let before = std::mem::take(&mut all.0);
        all.0 = new.0.into_iter().filter(|entry| !entry.manager.is(&self.manager)).collect();
        let ours = before.into_iter().find(|entry| entry.manager.is(&self.manager));
        all.0.extend(ours);
        all.set_fields(&self.manager, own, self.now);
    }

    /// Removes what was applied last time, is not applied now, and has no other owner. `applied` is
    /// everything that is applied now, managed or not.
    fn prune(
        &self,
        merged: &mut Value,
        last: &FieldSet,
        managed: &ManagedFields,
        applied: FieldSet,
    ) {
        let of_version =
            managed.0.iter().filter(|one| one.manager.api_version == self.manager.api_version);
        let mut owned = applied;
        for entry in of_version {
            owned.absorb(entry.fields.clone());
        }
        let gone = last.with_named_parents().difference(&owned.with_named_parents());
        typed::remove_fields(merged, self.node, &gone);
    }

    /// Removes changed fields from other managers, or fails if they conflict.
    fn take(
        &self,
        managed: &mut ManagedFields,
        changes: &FieldChanges,
        force: bool,
    ) -> Result<(), ApplyConflicts> {
        let changed = changes.modified.union(&changes.added);
        let is_other = |manager: &ManagerName| {
            !manager.is(&self.manager) && manager.api_version == self.manager.api_version
        };
        let conflicts: Vec<_> = managed
            .0
            .iter()
            .filter(|entry| is_other(&entry.manager))
            .map(|entry| (entry.clone(), entry.fields.intersection(&changed)))
            .filter(|(_, fields)| !fields.is_empty())
            .collect();
        if !force && !conflicts.is_empty() {
            return Err(ApplyConflicts(conflicts));
        }
        let lost = changed.union(&changes.removed);
        managed.disown(&self.manager.api_version, &lost, is_other);
        Ok(())
    }

    /// The object before the write. Before its creation it has only its parts, empty.
    fn state_before(&self, live: Option<&Value>, object: &Value) -> Value {
        let mut before = live.map_or_else(|| json!({ "metadata": {} }), unmanaged);
        for part in self.parts {
            if object.get(part).is_some_and(Value::is_object) && before.get(part).is_none() {
                before[part] = json!({});
            }
        }
        before
    }

    fn own(&self, mut fields: FieldSet) -> FieldSet {
        for field in ["f:apiVersion", "f:kind"] {
            fields.remove(&[field], true);
        }
        fields.remove(&["f:metadata"], false);
        for field in UNMANAGED {
            fields.remove(&["f:metadata", &format!("f:{field}")], true);
        }
        if let Some(ignored) = self.ignored {
            fields.remove(&[ignored], true);
        }
        fields
    }

    /// What kubectl applied on the client side, where it is unchanged.
    fn last_applied(&self, live: &Value) -> FieldSet {
        let Some(last) = last_applied_annotation(live) else { return FieldSet::default() };
        let live = unmanaged(live);
        let merged = typed::merge_applied(&live, &last, self.node);
        let changes = typed::compare_fields(&live, &merged, self.node);
        typed::collect_fields(&last, self.node)
            .difference(&changes.modified.union(&changes.added).union(&changes.removed))
    }

    /// Keeps the annotation up to date, because kubectl may return to client-side apply.
    fn keep_annotation(&self, live: Option<&Value>, applied: &Value, merged: &mut Value) {
        if self.manager.name != KUBECTL || live.and_then(last_applied_annotation).is_none() {
            return;
        }
        let mut applied = applied.clone();
        if let Some(Value::Object(annotations)) = applied.pointer_mut("/metadata/annotations") {
            annotations.remove(LAST_APPLIED);
        }
        // Like kubectl, ends with a newline.
        if let Some(Value::Object(annotations)) = merged.pointer_mut("/metadata/annotations") {
            annotations.insert(LAST_APPLIED.to_owned(), format!("{applied}\n").into());
        }
    }
}

fn last_applied_annotation(object: &Value) -> Option<Value> {
    let text = object.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
    serde_json::from_str(text).ok()
}

/// The object without `managedFields`.
fn unmanaged(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}
