//! Replaces an object, or its status.

use jiff::Timestamp;
use serde_json::Value;

use super::allocations::Ledger;
use super::change::{Change, Manager, Written, check_read};
use super::create::{create, set_namespace};
use super::options::WriteOptions;
use super::{Api, Outcome, Request, Target, metadata, text};
use crate::failure::Failure;
use crate::kinds::{Subresource, Violation};
use crate::storage::Transaction;

impl Api {
    pub async fn update(&self, request: Request) -> Result<Outcome, Failure> {
        let options = WriteOptions::parse(&request.query, &request.user_agent, "UpdateOptions")?;
        let (mut object, mut warnings) = request.object(options.field_validation)?;
        set_namespace(&request.target, &mut object)?;
        set_name(&request.target, &mut object)?;
        let target = request.target;
        let (code, written) = self
            .write(move |transaction, ledger| {
                update(transaction, ledger, &target, object, &options)
            })
            .await?;
        warnings.extend(written.warnings);
        Ok(Outcome { code, value: written.object, warnings })
    }
}

fn update(
    transaction: &mut Transaction<'_>,
    ledger: &mut Ledger,
    target: &Target,
    mut object: Value,
    options: &WriteOptions,
) -> Result<(u16, Written), Failure> {
    let kind = target.kind;
    let key = target.key()?;
    let Some(stored) = transaction.get(&key) else {
        if kind.rules.creates_on_update() && target.subresource == Subresource::None {
            let written = create(transaction, ledger, target, object, options)?;
            return Ok((201, written));
        }
        return Err(Failure::not_found(kind, target.name()?));
    };
    let revision = text(&object, "resourceVersion");
    let revision = (!matches!(revision, "" | "0")).then_some(revision);
    if revision.is_none() && !kind.rules.updates_unconditionally() {
        let detail = "must be specified for an update";
        let violation = Violation::invalid("metadata.resourceVersion", 0, detail);
        return Err(Failure::invalid(kind, target.name()?, &[violation]));
    }
    let uid = text(&object, "uid");
    check_read(target, &stored, revision, (!uid.is_empty()).then_some(uid))?;
    kind.rules.set_defaults(&mut object);
    let change = Change {
        transaction,
        ledger,
        kind,
        key: &key,
        dry_run: options.dry_run,
        keeps_metadata: target.keeps_metadata,
        now: Timestamp::now(),
    };
    let manager = Manager::Update(&options.manager);
    let written = change.update(&stored, object, target.subresource, &manager)?;
    Ok((200, written))
}

/// The object's name must be that of the path. Sets it if it is missing.
fn set_name(target: &Target, object: &mut Value) -> Result<(), Failure> {
    let name = target.name()?;
    match text(object, "name") {
        given if given == name => Ok(()),
        "" => {
            metadata::fields(object).insert("name".to_owned(), name.into());
            Ok(())
        }
        given => Err(Failure::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        ))),
    }
}
