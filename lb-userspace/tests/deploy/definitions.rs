//! The CustomResourceDefinitions in `deploy/` are those that the code declares.

use std::fs;

use lb_rules::kinds;
use serde_json::Value;

use super::deploy;

const HEAD: &str = "\
# Generated from the code: UPDATE_EXPECT=1 cargo test -p lb-userspace --test deploy definitions
";

fn text(definition: &Value) -> String {
    let mut definition = definition.clone();
    write_whole_numbers(&mut definition);
    serde_norway::to_string(&definition).unwrap()
}

/// Limits in schemas are floating-point numbers. Tools that rewrite manifests disagree about the
/// spelling of whole ones, unless they are integers.
fn write_whole_numbers(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(write_whole_numbers),
        Value::Array(elements) => elements.iter_mut().for_each(write_whole_numbers),
        Value::Number(number) => {
            let whole = number.as_f64().filter(|float| float.fract() == 0.0);
            if let (false, Some(float)) = (number.is_u64() || number.is_i64(), whole) {
                *value = Value::from(float as i64);
            }
        }
        _ => {}
    }
}

/// The chart's template. Removing the chart must not remove all pools.
fn template(definition: &Value) -> String {
    let mut definition = definition.clone();
    definition["metadata"]["labels"] = "LABELS".into();
    let metadata = "  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
  labels:
    {{- include \"millrace.labels\" . | nindent 4 }}
";
    let text = text(&definition).replacen("  labels: LABELS\n", metadata, 1);
    format!("{{{{- if .Values.crds.enabled }}}}\n{HEAD}{text}{{{{- end }}}}\n")
}

#[test]
fn the_definitions_are_those_of_the_code() {
    for (definition, file) in kinds::own_kinds().iter().zip(["address-pool.yaml", "bgp-peer.yaml"])
    {
        let definition = serde_json::to_value(definition).unwrap();
        for (folder, expected) in [
            ("kustomize/crds", format!("{HEAD}{}", text(&definition))),
            ("helm/millrace/templates", template(&definition)),
        ] {
            let path = deploy(&format!("{folder}/{file}"));
            if std::env::var_os("UPDATE_EXPECT").is_some() {
                fs::write(&path, &expected).unwrap();
            }
            let written = fs::read_to_string(&path).unwrap_or_default();
            assert!(written == expected, "{} is stale: {HEAD}", path.display());
        }
    }
    assert_eq!(kinds::own_kinds().len(), 2, "each has a file");
}
