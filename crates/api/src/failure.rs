//! Why a request failed: the Status that the client gets, in Kubernetes' words.

use std::collections::HashSet;
use std::fmt;

use serde_json::{Value, json};

use super::kinds::{ApiKind, Violation, ViolationKind};

#[derive(Debug, Clone, PartialEq)]
pub struct ApiFailure {
    pub code: u16,
    /// Machine-readable reason; empty if Kubernetes defines none.
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Value>,
    /// Where to continue a list whose revision is too old.
    pub continue_token: Option<String>,
}

impl ApiFailure {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, continue_token: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn internal(message: impl fmt::Display) -> Self {
        let mut failure =
            Self::new(500, "InternalError", format!("Internal error occurred: {message}"));
        failure.details = Some(json!({"causes": [{"message": message.to_string()}]}));
        failure
    }

    /// For an object.
    pub fn not_found(kind: &ApiKind, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified_resource(kind));
        Self { details: Some(of_resource(kind, name)), ..Self::new(404, "NotFound", message) }
    }

    /// For a path.
    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: Some(json!({})), ..Self::new(404, "NotFound", message) }
    }

    pub(crate) fn already_exists(kind: &ApiKind, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", qualified_resource(kind));
        Self { details: Some(of_resource(kind, name)), ..Self::new(409, "AlreadyExists", message) }
    }

    pub fn conflict(kind: &ApiKind, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            qualified_resource(kind)
        );
        Self { details: Some(of_resource(kind, name)), ..Self::new(409, "Conflict", message) }
    }

    /// Names the kind where others name the resource: API servers do so for preconditions of a DELETE.
    pub(crate) fn conflict_of_kind(kind: &ApiKind, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            qualify(kind.kind, kind.group)
        );
        let details = describe_object(kind.group, kind.kind, name);
        Self { details: Some(details), ..Self::new(409, "Conflict", message) }
    }

    /// The object was changed after the client read it.
    pub fn modified(kind: &ApiKind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Self::conflict(kind, name, why)
    }

    /// The name is empty if the whole resource is forbidden.
    pub fn forbidden(kind: &ApiKind, name: &str, why: &str) -> Self {
        let what = match name {
            "" => qualified_resource(kind),
            name => format!("{} \"{name}\"", qualified_resource(kind)),
        };
        let message = format!("{what} is forbidden: {why}");
        Self { details: Some(of_resource(kind, name)), ..Self::new(403, "Forbidden", message) }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self { details: Some(json!({})), ..Self::new(405, "MethodNotAllowed", message) }
    }

    pub fn invalid(kind: &ApiKind, name: &str, violations: &[Violation]) -> Self {
        Self::invalid_of(kind.group, kind.kind, name, violations)
    }

    /// For a value that is not an object, such as options.
    pub(crate) fn invalid_of(
        group: &str,
        kind: &str,
        name: &str,
        violations: &[Violation],
    ) -> Self {
        let qualified = qualify(kind, group);
        let mut seen = HashSet::new();
        let sentences: Vec<String> = violations
            .iter()
            .map(Violation::to_string)
            .filter(|sentence| seen.insert(sentence.clone()))
            .collect();
        let all = match sentences.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let mut details = describe_object(group, kind, name);
        details["causes"] = violations.iter().map(cause).collect();
        let message = format!("{qualified} \"{name}\" is invalid: {all}");
        if violations.iter().any(|violation| violation.kind == ViolationKind::Internal) {
            return Self { details: Some(details), ..Self::new(500, "InternalError", message) };
        }
        Self { details: Some(details), ..Self::new(422, "Invalid", message) }
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn with_empty_details(self) -> Self {
        Self { details: Some(json!({})), ..self }
    }

    /// Adds a cause that clients can look for.
    pub(crate) fn because(mut self, reason: &str, message: &str, field: &str) -> Self {
        let details = self.details.get_or_insert_with(|| json!({}));
        details["causes"] = json!([{"reason": reason, "message": message, "field": field}]);
        self
    }

    /// Asks the client to try again after this time.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        let details = self.details.get_or_insert_with(|| json!({}));
        details["retryAfterSeconds"] = json!(seconds);
        self
    }

    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.details.as_ref()?.get("retryAfterSeconds")?.as_u64()
    }

    pub fn status(&self) -> Value {
        let mut metadata = json!({});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = json!(token);
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}

impl fmt::Display for ApiFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

/// `services`, `ingresses.networking.k8s.io`
fn qualified_resource(kind: &ApiKind) -> String {
    qualify(kind.plural, kind.group)
}

/// `Service`, `Ingress.networking.k8s.io`
fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

fn of_resource(kind: &ApiKind, name: &str) -> Value {
    describe_object(kind.group, kind.plural, name)
}

/// The details of a Status that concern an object. What is empty is left out.
fn describe_object(group: &str, kind: &str, name: &str) -> Value {
    let fields = [("group", group), ("kind", kind), ("name", name)].into_iter();
    let fields = fields.filter(|(_, text)| !text.is_empty());
    fields.map(|(field, text)| (field.to_owned(), json!(text))).collect()
}

fn cause(violation: &Violation) -> Value {
    json!({
        "reason": violation.kind.reason(),
        "message": violation.message(),
        "field": violation.field,
    })
}
