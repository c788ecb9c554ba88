//! The metadata that the server sets in every object.

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::codec::format_time;
use super::super::failure::ApiFailure;

/// No vowels, which could make words, and no characters that are easily confused.
const SUFFIX_LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const MAX_GENERATED_NAME_LENGTH: usize = 63;

/// A `generateName` prefix with a random suffix.
pub(crate) fn generate_name(prefix: &str) -> Result<String, ApiFailure> {
    let mut end = prefix.len().min(MAX_GENERATED_NAME_LENGTH - SUFFIX_LENGTH);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = prefix[..end].to_owned();
    for byte in random_bytes::<SUFFIX_LENGTH>()? {
        name.push(SUFFIX_LETTERS[usize::from(byte) % SUFFIX_LETTERS.len()].into());
    }
    Ok(name)
}

/// A UUID of version 4.
fn uid() -> Result<String, ApiFailure> {
    let mut bytes = random_bytes::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let number = u128::from_be_bytes(bytes);
    let hex = format!("{number:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(parts.join("-"))
}

fn random_bytes<const N: usize>() -> Result<[u8; N], ApiFailure> {
    let mut bytes = [0; N];
    let filled: Result<()> =
        getrandom::fill(&mut bytes).map_err(anyhow::Error::from).context("no random numbers");
    filled.map_err(ApiFailure::internal)?;
    Ok(bytes)
}

/// Sets the fields of a new object that clients cannot choose.
pub(crate) fn set_creation_fields(object: &mut Value, now: Timestamp) -> Result<(), ApiFailure> {
    let uid = uid()?;
    let metadata = metadata_mut(object);
    for name in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
        metadata.remove(name);
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), format_time(now).into());
    Ok(())
}

/// Restores the fields of an existing object that clients cannot change.
pub(crate) fn restore_server_fields(object: &mut Value, old: &Value) {
    for name in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "namespace",
        "resourceVersion",
    ] {
        restore_field(object, old, name);
    }
    metadata_mut(object).remove("selfLink");
}

/// Restores the fields that clients can change otherwise.
pub(crate) fn restore_client_fields(object: &mut Value, old: &Value) {
    for name in ["annotations", "finalizers", "labels", "ownerReferences"] {
        restore_field(object, old, name);
    }
}

pub(crate) fn restore_managed_fields(object: &mut Value, old: &Value) {
    restore_field(object, old, "managedFields");
}

fn restore_field(object: &mut Value, old: &Value, name: &str) {
    let metadata = metadata_mut(object);
    match old["metadata"].get(name) {
        Some(value) => metadata.insert(name.to_owned(), value.clone()),
        None => metadata.remove(name),
    };
}

/// Marks an object that only waits for its finalizers.
pub(crate) fn mark_deleted(object: &mut Value, now: Timestamp) {
    let metadata = metadata_mut(object);
    metadata.insert("deletionTimestamp".to_owned(), format_time(now).into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
}

pub(crate) fn is_being_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Whether no finalizers keep an object that is to be deleted.
pub(crate) fn has_no_finalizers(object: &Value) -> bool {
    let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    // Only Namespaces have finalizers in their spec.
    is_empty(&object["metadata"]["finalizers"]) && is_empty(&object["spec"]["finalizers"])
}

pub(crate) fn metadata_mut(object: &mut Value) -> &mut serde_json::Map<String, Value> {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    match &mut object["metadata"] {
        Value::Object(fields) => fields,
        _ => unreachable!("it was made an object just now"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_keep_their_prefix_and_stay_short_enough() {
        let name = generate_name("web-").unwrap();
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
        assert_eq!(generate_name(&"x".repeat(100)).unwrap().len(), 63);
        assert_ne!(generate_name("web-").unwrap(), generate_name("web-").unwrap());
    }

    #[test]
    fn uids_are_random_uuids() {
        let uid = uid().unwrap();
        assert_eq!(uid.len(), 36);
        assert_eq!(&uid[14..15], "4");
        assert!("89ab".contains(&uid[19..20]), "{uid}");
    }
}
