//! Converts a client's JSON to the form of a declared kind: fields that its schema does not have are
//! removed. Wrong types stay, and are reported by the kind's validation with the field's path.

use serde_json::Value;

use super::typed::{self, MAX_REPORTED_FIELDS, Mismatch, RemovedFields, join_field_path};
use crate::schema;

pub(crate) fn prune_declared(
    schema: &'static Value,
    value: &mut Value,
) -> Result<RemovedFields, Mismatch> {
    let mut outcome = RemovedFields::default();
    prune_value(schema, value, "", &mut outcome)?;
    Ok(outcome)
}

fn prune_value(
    schema: &'static Value,
    value: &mut Value,
    path: &str,
    outcome: &mut RemovedFields,
) -> Result<(), Mismatch> {
    if let Some(definition) = schema::resolve_reference(schema) {
        // The metadata has a type of Kubernetes.
        let unknown = typed::shape_typed(definition, value)?.unknown;
        outcome.unknown.extend(unknown.iter().map(|field| join_field_path(path, field)));
        return Ok(());
    }
    match value {
        Value::Object(fields) => {
            let known = |name: &str| {
                let property = schema.get("properties").and_then(|known| known.get(name));
                property.or_else(|| schema.get("additionalProperties"))
            };
            let names: Vec<String> = fields.keys().cloned().collect();
            for name in names {
                let path = join_field_path(path, &name);
                match known(&name) {
                    // A null counts as missing, so that the default applies.
                    Some(schema) if fields[&name].is_null() && schema["nullable"] != true => {
                        fields.remove(&name);
                    }
                    Some(schema) => prune_value(schema, &mut fields[&name], &path, outcome)?,
                    None => {
                        fields.remove(&name);
                        if outcome.unknown.len() < MAX_REPORTED_FIELDS {
                            outcome.unknown.push(path);
                        }
                    }
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return Ok(()) };
            for (index, item) in items.iter_mut().enumerate() {
                prune_value(schema, item, &format!("{path}[{index}]"), outcome)?;
            }
        }
        _ => {}
    }
    Ok(())
}
