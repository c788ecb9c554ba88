//! Creates an object.

use jiff::Timestamp;
use serde_json::Value;

use super::allocations::Ledger;
use super::change::{Change, Manager, Written};
use super::options::WriteOptions;
use super::{Api, Outcome, Request, Target, key, metadata, text};
use crate::failure::Failure;
use crate::storage::Transaction;

/// Attempts to find an unused generated name.
const NAME_ATTEMPTS: usize = 8;

impl Api {
    pub async fn create(&self, request: Request) -> Result<Outcome, Failure> {
        if request.target.name.is_some() {
            return Err(Failure::method_not_allowed());
        }
        let options = WriteOptions::parse(&request.query, &request.user_agent, "CreateOptions")?;
        let (mut object, mut warnings) = request.object(options.field_validation)?;
        // Defaults are set by decoding.
        set_namespace(&request.target, &mut object)?;
        let target = request.target;
        let written = self
            .write(move |transaction, ledger| {
                create(transaction, ledger, &target, object, &options)
            })
            .await?;
        warnings.extend(written.warnings);
        Ok(Outcome { code: 201, value: written.object, warnings })
    }
}

/// Creates an object within a write. Also used by updates that may create.
pub(super) fn create(
    transaction: &mut Transaction<'_>,
    ledger: &mut Ledger,
    target: &Target,
    mut object: Value,
    options: &WriteOptions,
) -> Result<Written, Failure> {
    if !matches!(text(&object, "resourceVersion"), "" | "0") {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(Failure::new(500, "", message));
    }
    name(transaction, target, &mut object)?;
    let name = text(&object, "name").to_owned();
    let key = key(target.kind, target.namespace.as_deref(), &name);
    if !name.is_empty() && transaction.get(&key).is_some() {
        return Err(Failure::already_exists(target.kind, &name));
    }
    target.kind.rules.set_defaults(&mut object);
    let change = Change {
        transaction,
        ledger,
        kind: target.kind,
        key: &key,
        dry_run: options.dry_run,
        keeps_metadata: false,
        now: Timestamp::now(),
    };
    change.create(object, &Manager::Update(&options.manager))
}

/// Generates a name if the client asks for one.
fn name(transaction: &Transaction<'_>, target: &Target, object: &mut Value) -> Result<(), Failure> {
    let prefix = text(object, "generateName").to_owned();
    if !text(object, "name").is_empty() || prefix.is_empty() {
        return Ok(());
    }
    let mut name = metadata::generated_name(&prefix)?;
    for _ in 1..NAME_ATTEMPTS {
        let key = key(target.kind, target.namespace.as_deref(), &name);
        if transaction.get(&key).is_none() {
            break;
        }
        name = metadata::generated_name(&prefix)?;
    }
    metadata::fields(object).insert("name".to_owned(), name.into());
    Ok(())
}

/// The object's namespace must be that of the path. Sets it if it is missing.
pub(super) fn set_namespace(target: &Target, object: &mut Value) -> Result<(), Failure> {
    let given = text(object, "namespace").to_owned();
    match &target.namespace {
        None if target.kind.namespaced => Err(Failure::bad_request(
            "an empty namespace may not be set during creation".to_owned(),
        )),
        // Without namespaces, like an API server.
        None => {
            metadata::fields(object).remove("namespace");
            Ok(())
        }
        Some(namespace) if given.is_empty() || given == *namespace => {
            let namespace = namespace.clone().into();
            metadata::fields(object).insert("namespace".to_owned(), namespace);
            Ok(())
        }
        Some(_) => Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}
