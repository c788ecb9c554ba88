//! What is wrong with a field, in the words of an API server.

use std::fmt;

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    pub kind: ViolationKind,
    /// For example `spec.ports[0].port`.
    pub field: String,
    /// The invalid value.
    pub value: Value,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViolationKind {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
}

impl Violation {
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: &str) -> Self {
        Self::new(ViolationKind::Invalid, field, value, detail)
    }

    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(ViolationKind::Required, field, Value::Null, detail)
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(ViolationKind::Forbidden, field, Value::Null, detail)
    }

    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(ViolationKind::Duplicate, field, value, "")
    }

    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(ViolationKind::NotFound, field, value, "")
    }

    pub(crate) fn not_supported(
        field: impl Into<String>,
        value: impl Into<Value>,
        supported: &[&str],
    ) -> Self {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let detail = format!("supported values: {}", supported.join(", "));
        Self::new(ViolationKind::NotSupported, field, value, &detail)
    }

    pub fn too_long(field: impl Into<String>, maximum: usize) -> Self {
        let detail = format!("may not be more than {maximum} bytes");
        Self::new(ViolationKind::TooLong, field, Value::Null, &detail)
    }

    pub fn too_many(field: impl Into<String>, actual: usize, maximum: usize) -> Self {
        let detail = format!("must have at most {maximum} items");
        Self::new(ViolationKind::TooMany, field, actual, &detail)
    }

    /// An internal error, code 500.
    pub fn internal(field: impl Into<String>, detail: &str) -> Self {
        Self::new(ViolationKind::Internal, field, Value::Null, detail)
    }

    fn new(
        kind: ViolationKind,
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: &str,
    ) -> Self {
        Self { kind, field: field.into(), value: value.into(), detail: detail.to_owned() }
    }

    /// The message without the field, as in the causes of a Status.
    pub fn message(&self) -> String {
        let kind = self.kind.description();
        let shows_value = !matches!(
            self.kind,
            ViolationKind::Required
                | ViolationKind::Forbidden
                | ViolationKind::TooLong
                | ViolationKind::Internal
        );
        let value = match &self.value {
            _ if !shows_value => String::new(),
            // Like an API server, which formats a missing value as a string.
            Value::Null => ": \"null\"".to_owned(),
            value => format!(": {value}"),
        };
        let detail =
            if self.detail.is_empty() { String::new() } else { format!(": {}", self.detail) };
        format!("{kind}{value}{detail}")
    }
}

impl ViolationKind {
    /// The machine-readable `reason` of a cause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_read_as_an_api_servers() {
        for (violation, expected) in [
            (
                Violation::invalid(
                    "spec.ports[0].port",
                    0,
                    "must be between 1 and 65535, inclusive",
                ),
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            ),
            (Violation::required("spec.ports", ""), "spec.ports: Required value"),
            (
                Violation::not_supported("spec.type", "Foo", &["ClusterIP", "NodePort"]),
                r#"spec.type: Unsupported value: "Foo": supported values: "ClusterIP", "NodePort""#,
            ),
            (
                Violation::invalid("spec.clusterIP", Value::Null, "field is immutable"),
                r#"spec.clusterIP: Invalid value: "null": field is immutable"#,
            ),
            (
                Violation::too_many("endpoints", 1001, 1000),
                "endpoints: Too many: 1001: must have at most 1000 items",
            ),
            (
                Violation::duplicate("spec.ports[1].name", "a"),
                r#"spec.ports[1].name: Duplicate value: "a""#,
            ),
        ] {
            assert_eq!(violation.to_string(), expected);
        }
    }
}
