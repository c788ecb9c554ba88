//! Changes part of an object, with any of the four kinds of patches.

use jiff::Timestamp;
use serde_json::Value;

use super::allocations::Ledger;
use super::change::{Change, Manager, Written, check_read};
use super::create::set_namespace;
use super::go;
use super::options::{Query, WriteOptions};
use super::{Api, Outcome, Request, Target, judge, metadata, shown, text, unsupported};
use crate::codec::{self, Format};
use crate::failure::Failure;
use crate::kinds::{Kind, Subresource, Violation};
use crate::patch::{PatchError, apply, json, merge, strategic};
use crate::storage::{Stored, Transaction};

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
    fn of(kind: &Kind, content_type: &str) -> Result<Self, Failure> {
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
    pub async fn patch(&self, request: Request) -> Result<Outcome, Failure> {
        let type_ = PatchType::of(request.target.kind, &request.content_type)?;
        let options = WriteOptions::parse(&request.query, &request.user_agent, "PatchOptions")?;
        check_options(type_, &options, &request.query)?;
        let format = if type_ == PatchType::Apply { Format::Yaml } else { Format::Json };
        let (patch, duplicates) =
            codec::parse(format, &request.body).map_err(Failure::bad_request)?;
        let oddities = duplicates.iter().map(|path| format!("duplicate field \"{path}\""));
        let mut warnings =
            judge(oddities.collect(), options.field_validation, |why| Failure::bad_request(why))?;
        let target = request.target;
        let (code, written) = self
            .write(move |transaction, ledger| match type_ {
                PatchType::Apply => applied(transaction, ledger, &target, patch, &options),
                type_ => patched(transaction, ledger, &target, type_, &patch, &options),
            })
            .await?;
        warnings.extend(written.warnings);
        Ok(Outcome { code, value: written.object, warnings })
    }
}

fn check_options(type_: PatchType, options: &WriteOptions, query: &Query) -> Result<(), Failure> {
    let violation = match type_ {
        PatchType::Apply if query.text("fieldManager").is_empty() => {
            Violation::required("fieldManager", "is required for apply patch")
        }
        PatchType::Apply => return Ok(()),
        _ if options.force.is_some() => {
            Violation::forbidden("force", "may not be specified for non-apply patch")
        }
        _ => return Ok(()),
    };
    Err(Failure::invalid_of("meta.k8s.io", "PatchOptions", "", &[violation]))
}

fn patched(
    transaction: &mut Transaction<'_>,
    ledger: &mut Ledger,
    target: &Target,
    type_: PatchType,
    patch: &Value,
    options: &WriteOptions,
) -> Result<(u16, Written), Failure> {
    let kind = target.kind;
    let key = target.key()?;
    let stored = transaction
        .get(&key)
        .ok_or_else(|| Failure::not_found(kind, target.name().unwrap_or("")))?;
    let old = shown(kind, &stored);
    let result = match type_ {
        PatchType::Json => json::apply(&old, patch),
        PatchType::Merge => merge::apply(&old, patch),
        PatchType::Strategic | PatchType::Apply => strategic::apply(kind, &old, patch),
    };
    let mut object = result.map_err(|error| match error {
        PatchError::Malformed(why) => Failure::bad_request(why),
        PatchError::Unfitting(why) => Failure::new(422, "Invalid", why),
        PatchError::TooLarge(why) => Failure::new(413, "RequestEntityTooLarge", why),
    })?;
    check_identity(&old, &object)?;
    // Like an API server, which reports what it could not decode: the object, or a strategic patch.
    let shown = match type_ {
        PatchType::Strategic => go::text(patch),
        _ => object.to_string(),
    };
    let invalid = |why: &str| {
        let violation = Violation::invalid("patch", shown.as_str(), why);
        Failure::invalid_of("", "", "", &[violation])
    };
    let oddities = codec::shape(kind, &mut object).map_err(|why| invalid(&why))?;
    let warnings = judge(oddities, options.field_validation, invalid)?;
    let written = change(transaction, ledger, target, &key, &stored, object, options, false)?;
    Ok((200, with_warnings(written, warnings)))
}

fn applied(
    transaction: &mut Transaction<'_>,
    ledger: &mut Ledger,
    target: &Target,
    mut applied: Value,
    options: &WriteOptions,
) -> Result<(u16, Written), Failure> {
    let kind = target.kind;
    let key = target.key()?;
    if !applied.is_object() {
        return Err(Failure::bad_request("the patch is not an object"));
    }
    check_type(target, &applied)?;
    if !applied["metadata"]["managedFields"].is_null() {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    set_namespace(target, &mut applied)?;
    metadata::fields(&mut applied).insert("name".to_owned(), target.name()?.into());
    if target.keeps_metadata {
        // The manager must not own what it does not write.
        metadata::restore(&mut applied, &Value::Null);
    }
    let oddities =
        codec::shape(kind, &mut applied).map_err(|why| codec::cannot_be_handled(kind, &why))?;
    let warnings =
        judge(oddities, options.field_validation, |why| codec::cannot_be_handled(kind, why))?;
    let stored = transaction.get(&key);
    let live = stored.as_ref().map(|stored| shown(kind, stored));
    if live.is_none() && target.subresource != Subresource::None {
        return Err(Failure::not_found(kind, target.name()?));
    }
    let force = options.force.unwrap_or_default();
    let now = Timestamp::now();
    let manager = &options.manager;
    let subresource = target.subresource;
    let merged = apply::apply(kind, live.as_ref(), &applied, manager, force, subresource, now)
        .map_err(|conflicts| conflict_of_managers(target, &conflicts))?;
    let (code, written) = match &stored {
        Some(stored) => {
            let written = change(transaction, ledger, target, &key, stored, merged, options, true)?;
            (200, written)
        }
        None => {
            if !text(&merged, "uid").is_empty() {
                let why = format!(
                    "Precondition failed: UID in precondition: {}, UID in object meta: ",
                    text(&merged, "uid")
                );
                return Err(Failure::conflict(kind, target.name()?, &why));
            }
            let mut object = merged;
            kind.rules.set_defaults(&mut object);
            let (dry_run, keeps_metadata, key) = (options.dry_run, false, &*key);
            let change = Change { transaction, ledger, kind, key, dry_run, keeps_metadata, now };
            (201, change.create(object, &Manager::Applied)?)
        }
    };
    Ok((code, with_warnings(written, warnings)))
}

#[expect(clippy::too_many_arguments, reason = "all that a write has, and who manages it")]
fn change(
    transaction: &mut Transaction<'_>,
    ledger: &mut Ledger,
    target: &Target,
    key: &str,
    stored: &Stored,
    mut object: Value,
    options: &WriteOptions,
    applied: bool,
) -> Result<Written, Failure> {
    let revision = text(&object, "resourceVersion");
    let revision = (!matches!(revision, "" | "0")).then_some(revision);
    let uid = text(&object, "uid");
    check_read(target, stored, revision, (!uid.is_empty()).then_some(uid))?;
    target.kind.rules.set_defaults(&mut object);
    let change = Change {
        transaction,
        ledger,
        kind: target.kind,
        key,
        dry_run: options.dry_run,
        keeps_metadata: target.keeps_metadata,
        now: Timestamp::now(),
    };
    let manager = if applied { Manager::Applied } else { Manager::Update(&options.manager) };
    change.update(stored, object, target.subresource, &manager)
}

fn with_warnings(mut written: Written, warnings: Vec<String>) -> Written {
    written.warnings.splice(0..0, warnings);
    written
}

/// A patch must not change which object this is.
fn check_identity(old: &Value, new: &Value) -> Result<(), Failure> {
    if !new.is_object() {
        return Err(Failure::new(422, "Invalid", "the patch leaves no object"));
    }
    for field in ["apiVersion", "kind"] {
        if old[field] != new[field] {
            return Err(Failure::bad_request(format!(
                "the {field} of an object can't be changed by a patch"
            )));
        }
    }
    if text(old, "name") != text(new, "name") {
        return Err(Failure::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            text(new, "name"),
            text(old, "name")
        )));
    }
    if text(old, "namespace") != text(new, "namespace") {
        return Err(Failure::bad_request(
            "the namespace of the object does not match the namespace on the request",
        ));
    }
    Ok(())
}

/// An applied object must declare its type and, if it has a name, the right one.
fn check_type(target: &Target, applied: &Value) -> Result<(), Failure> {
    let kind = target.kind;
    let expected = (kind.api_version(), kind.kind);
    let given = (
        applied["apiVersion"].as_str().unwrap_or_default().to_owned(),
        applied["kind"].as_str().unwrap_or_default(),
    );
    if given != expected {
        return Err(Failure::bad_request(format!(
            "invalid object type: {}, Kind={}; expected {}, Kind={}",
            given.0, given.1, expected.0, expected.1
        )));
    }
    let name = text(applied, "name");
    if !name.is_empty() && name != target.name()? {
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name()?
        )));
    }
    Ok(())
}

fn conflict_of_managers(target: &Target, conflicts: &apply::Conflicts) -> Failure {
    let mut failure = Failure::new(409, "Conflict", conflicts.to_string());
    failure.details = Some(serde_json::json!({
        "name": target.name.clone().unwrap_or_default(),
        "kind": target.kind.plural,
        "causes": conflicts.causes(),
    }));
    failure
}
