//! Changes part of an object, with any of the four kinds of patches.

use jiff::Timestamp;
use serde_json::Value;

use super::allocations::AllocationLedger;
use super::change::{FieldManager, ObjectWrite, WrittenObject, check_preconditions};
use super::create::check_or_set_namespace;
use super::go;
use super::options::{QueryParameters, WriteOptions};
use super::{
    Api, ApiRequest, OperationResult, RequestTarget, metadata, metadata_text, report_oddities,
    shown, unsupported, update,
};
use crate::codec::{self, BodyFormat};
use crate::failure::ApiFailure;
use crate::kinds::{ApiKind, Subresource, Violation};
use crate::patch::{PatchError, apply, json, merge, strategic};
use crate::storage::{StoredObject, Transaction};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

/// The last one not for declared kinds.
const PATCH_TYPES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
];

impl PatchType {
    fn of(kind: &ApiKind, content_type: &str) -> Result<Self, ApiFailure> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            // Needs the merge keys that only types of Kubernetes have.
            "application/strategic-merge-patch+json" if kind.declared.is_none() => {
                Ok(Self::Strategic)
            }
            other => {
                let most = PATCH_TYPES.len() - usize::from(kind.declared.is_some());
                Err(unsupported(other, &PATCH_TYPES[..most]))
            }
        }
    }
}

impl Api {
    pub async fn patch(&self, request: ApiRequest) -> Result<OperationResult, ApiFailure> {
        let type_ = PatchType::of(request.target.kind, &request.content_type)?;
        let options = WriteOptions::parse(&request.query, &request.user_agent, "PatchOptions")?;
        check_options(type_, &options, &request.query)?;
        let format = if type_ == PatchType::Apply { BodyFormat::Yaml } else { BodyFormat::Json };
        let (patch, duplicates) =
            codec::parse_body(format, &request.body).map_err(ApiFailure::bad_request)?;
        let oddities = duplicates.iter().map(|path| format!("duplicate field \"{path}\""));
        let mut warnings = report_oddities(oddities.collect(), options.field_validation, |why| {
            ApiFailure::bad_request(why)
        })?;
        let target = request.target;
        let (code, written) = self
            .write(move |transaction, ledger| match type_ {
                PatchType::Apply => {
                    apply_configuration(transaction, ledger, &target, patch, &options)
                }
                type_ => patch_object(transaction, ledger, &target, type_, &patch, &options),
            })
            .await?;
        warnings.extend(written.warnings);
        Ok(OperationResult { code, value: written.object, warnings })
    }
}

fn check_options(
    type_: PatchType,
    options: &WriteOptions,
    query: &QueryParameters,
) -> Result<(), ApiFailure> {
    let violation = match type_ {
        PatchType::Apply if query.first_value("fieldManager").is_empty() => {
            Violation::required("fieldManager", "is required for apply patch")
        }
        PatchType::Apply => return Ok(()),
        _ if options.force.is_some() => {
            Violation::forbidden("force", "may not be specified for non-apply patch")
        }
        _ => return Ok(()),
    };
    Err(ApiFailure::invalid_of("meta.k8s.io", "PatchOptions", "", &[violation]))
}

fn patch_object(
    transaction: &mut Transaction<'_>,
    ledger: &mut AllocationLedger,
    target: &RequestTarget,
    type_: PatchType,
    patch: &Value,
    options: &WriteOptions,
) -> Result<(u16, WrittenObject), ApiFailure> {
    let kind = target.kind;
    let key = target.key()?;
    let stored = transaction
        .get(&key)
        .ok_or_else(|| ApiFailure::not_found(kind, target.name().unwrap_or("")))?;
    let old = shown(kind, &stored);
    let result = match type_ {
        PatchType::Json => json::apply_json_patch(&old, patch),
        PatchType::Merge => merge::apply_merge_patch(&old, patch),
        PatchType::Strategic | PatchType::Apply => {
            strategic::apply_strategic_patch(kind, &old, patch)
        }
    };
    let mut object = result.map_err(|error| match error {
        PatchError::Malformed(why) => ApiFailure::bad_request(why),
        PatchError::Unfitting(why) => ApiFailure::new(422, "Invalid", why).with_empty_details(),
        PatchError::TooLarge(why) => ApiFailure::new(413, "RequestEntityTooLarge", why),
    })?;
    // Like an API server, which reports what it could not decode: the object, or a strategic patch.
    let shown = match type_ {
        PatchType::Strategic => go::format_go_value(patch),
        _ => object.to_string(),
    };
    let invalid = |why: &str| {
        let violation = Violation::invalid("patch", shown.as_str(), why);
        ApiFailure::invalid_of("", "", "", &[violation])
    };
    if !object.is_object() {
        return Err(invalid("the patch leaves no object"));
    }
    for field in ["apiVersion", "kind"] {
        if object[field].is_null() {
            object[field] = old[field].clone();
        } else if old[field] != object[field] {
            return Err(invalid(&format!("the {field} of an object can't be changed by a patch")));
        }
    }
    check_identity(&old, &object)?;
    check_uid(kind, &old, &object)?;
    let oddities = codec::shape_object(kind, &mut object).map_err(|why| invalid(&why))?;
    let warnings = report_oddities(oddities, options.field_validation, invalid)?;
    let written = change(transaction, ledger, target, &key, &stored, object, options, false)?;
    Ok((200, with_warnings(written, warnings)))
}

fn apply_configuration(
    transaction: &mut Transaction<'_>,
    ledger: &mut AllocationLedger,
    target: &RequestTarget,
    mut applied: Value,
    options: &WriteOptions,
) -> Result<(u16, WrittenObject), ApiFailure> {
    let kind = target.kind;
    let key = target.key()?;
    if !applied.is_object() {
        return Err(ApiFailure::bad_request("the patch is not an object"));
    }
    check_applied_type(target, &applied)?;
    if !applied["metadata"]["managedFields"].is_null() {
        return Err(ApiFailure::bad_request("metadata.managedFields must be nil"));
    }
    refuse_undeclared_fields(kind, &applied)?;
    check_or_set_namespace(target, &mut applied)?;
    metadata::metadata_mut(&mut applied).insert("name".to_owned(), target.name()?.into());
    if target.keeps_metadata {
        // The manager must not own what it does not write.
        metadata::restore_client_fields(&mut applied, &Value::Null);
    }
    let oddities =
        codec::shape_object(kind, &mut applied).map_err(|why| codec::refuse_body(kind, &why))?;
    let warnings =
        report_oddities(oddities, options.field_validation, |why| codec::refuse_body(kind, why))?;
    let stored = transaction.get(&key);
    let live = stored.as_ref().map(|stored| shown(kind, stored));
    if live.is_none() && target.subresource != Subresource::None {
        return Err(ApiFailure::not_found(kind, target.name()?));
    }
    let force = options.force.unwrap_or_default();
    let now = Timestamp::now();
    let manager = &options.manager;
    let subresource = target.subresource;
    let merged =
        apply::apply_server_side(kind, live.as_ref(), &applied, manager, force, subresource, now)
            .map_err(|conflicts| conflict_of_managers(&conflicts))?;
    let (code, written) = match &stored {
        Some(stored) => {
            let written = change(transaction, ledger, target, &key, stored, merged, options, true)?;
            (200, written)
        }
        None => {
            if !metadata_text(&merged, "uid").is_empty() {
                let why = format!(
                    "Precondition failed: UID in precondition: {}, UID in object meta: ",
                    metadata_text(&merged, "uid")
                );
                return Err(ApiFailure::conflict(kind, target.name()?, &why));
            }
            let mut object = merged;
            kind.rules.set_defaults(&mut object);
            let (dry_run, keeps_metadata, key) = (options.dry_run, false, &*key);
            let change =
                ObjectWrite { transaction, ledger, kind, key, dry_run, keeps_metadata, now };
            (201, change.create_object(object, &FieldManager::Applied)?)
        }
    };
    Ok((code, with_warnings(written, warnings)))
}

#[expect(clippy::too_many_arguments, reason = "all that a write has, and who manages it")]
fn change(
    transaction: &mut Transaction<'_>,
    ledger: &mut AllocationLedger,
    target: &RequestTarget,
    key: &str,
    stored: &StoredObject,
    mut object: Value,
    options: &WriteOptions,
    applied: bool,
) -> Result<WrittenObject, ApiFailure> {
    let revision = metadata_text(&object, "resourceVersion");
    let revision = (!matches!(revision, "" | "0")).then_some(revision);
    let uid = metadata_text(&object, "uid");
    check_preconditions(target, stored, revision, (!uid.is_empty()).then_some(uid))?;
    target.kind.rules.set_defaults(&mut object);
    let change = ObjectWrite {
        transaction,
        ledger,
        kind: target.kind,
        key,
        dry_run: options.dry_run,
        keeps_metadata: target.keeps_metadata,
        now: Timestamp::now(),
    };
    let manager =
        if applied { FieldManager::Applied } else { FieldManager::Update(&options.manager) };
    change.update_object(stored, object, target.subresource, &manager)
}

fn with_warnings(mut written: WrittenObject, warnings: Vec<String>) -> WrittenObject {
    written.warnings.splice(0..0, warnings);
    written
}

/// In a PUT the uid is a precondition. A patch would change it.
fn check_uid(kind: &ApiKind, old: &Value, new: &Value) -> Result<(), ApiFailure> {
    let uid = metadata_text(new, "uid");
    if uid.is_empty() || uid == metadata_text(old, "uid") {
        return Ok(());
    }
    let violation = Violation::invalid("metadata.uid", uid, "field is immutable");
    Err(ApiFailure::invalid(kind, metadata_text(old, "name"), &[violation]))
}

/// A patch must not change which object this is.
fn check_identity(old: &Value, new: &Value) -> Result<(), ApiFailure> {
    update::check_name_in_path(metadata_text(old, "name"), new)?;
    if metadata_text(old, "namespace") != metadata_text(new, "namespace") {
        return Err(ApiFailure::bad_request(
            "the namespace of the object does not match the namespace on the request",
        ));
    }
    Ok(())
}

/// An applied object must declare its type and, if it has a name, the right one.
fn check_applied_type(target: &RequestTarget, applied: &Value) -> Result<(), ApiFailure> {
    let kind = target.kind;
    let expected = (kind.api_version(), kind.kind);
    let given = (
        applied["apiVersion"].as_str().unwrap_or_default().to_owned(),
        applied["kind"].as_str().unwrap_or_default(),
    );
    if given != expected {
        return Err(ApiFailure::bad_request(format!(
            "invalid object type: {}, Kind={}; expected {}, Kind={}",
            given.0, given.1, expected.0, expected.1
        )));
    }
    match metadata_text(applied, "name") {
        "" => Ok(()),
        _ => update::check_name_in_path(target.name()?, applied),
    }
}

/// A manager cannot own a field that the kind does not have, so an applied object must not contain one, whatever
/// the client wishes for other writes.
fn refuse_undeclared_fields(kind: &ApiKind, applied: &Value) -> Result<(), ApiFailure> {
    let fields = apply::find_undeclared_fields(kind, applied);
    let mut sentences: Vec<String> =
        fields.iter().map(|field| format!("{field}: field not declared in schema")).collect();
    if sentences.is_empty() {
        return Ok(());
    }
    if sentences.len() > 1 {
        sentences.insert(0, "errors:".to_owned());
    }
    let (namespace, name) = (metadata_text(applied, "namespace"), metadata_text(applied, "name"));
    let (group, version, kind) = (kind.group, kind.version, kind.kind);
    let why = sentences.join("\n  ");
    let object = format!("{namespace}/{name}; {group}/{version}, Kind={kind}");
    // The status of an API server, which has no other for this.
    let message = format!("failed to create typed patch object ({object}): {why}");
    Err(ApiFailure::new(500, "", message))
}

fn conflict_of_managers(conflicts: &apply::ApplyConflicts) -> ApiFailure {
    let mut failure = ApiFailure::new(409, "Conflict", conflicts.to_string());
    failure.details = Some(serde_json::json!({"causes": conflicts.causes()}));
    failure
}
