//! What is wrong with a field, in the words that kubectl's users know.

use std::fmt;

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    pub kind: ViolationKind,
    /// As `spec.ports[0].port`.
    pub field: String,
    /// The offending value.
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

    pub fn not_supported(
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

    fn new(
        kind: ViolationKind,
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: &str,
    ) -> Self {
        Self { kind, field: field.into(), value: value.into(), detail: detail.to_owned() }
    }

    /// The message without the field, as a Status lists it among its causes.
    pub fn message(&self) -> String {
        let kind = self.kind.description();
        let shows_value = !matches!(
            self.kind,
            ViolationKind::Required
                | ViolationKind::Forbidden
                | ViolationKind::TooLong
                | ViolationKind::Internal
        );
        let value = if shows_value { format!(": {}", self.value) } else { String::new() };
        let detail =
            if self.detail.is_empty() { String::new() } else { format!(": {}", self.detail) };
        format!("{kind}{value}{detail}")
    }
}

impl ViolationKind {
    /// The machine's word, a cause's `reason`.
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
