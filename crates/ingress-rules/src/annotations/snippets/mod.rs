//! The annotations with snippets (CVE-2021-25742, CVE-2025-1974): see [`crate::snippets`].

#[cfg(test)]
mod tests;

use crate::snippets::{
    DirectiveFinding, DirectiveOutcome, SnippetKind, SnippetLevel, read_directives, read_scope,
};

use super::{Annotation, AnnotationOutcome, Draft, Effect, Finding};

const fn snippet(nginx: &'static [&'static str], kind: SnippetKind) -> Annotation {
    let effect = Effect::Snippet(kind);
    Annotation { name: "", nginx, value: "", doc: "", effect, differs: "", restricts: true }
}

pub const TABLE: &[Annotation] = &[
    snippet(&["configuration-snippet"], SnippetKind::Location),
    snippet(&["server-snippet"], SnippetKind::Server),
    snippet(&["auth-snippet"], SnippetKind::Other),
    snippet(&["stream-snippet"], SnippetKind::Other),
    snippet(&["modsecurity-snippet"], SnippetKind::Other),
];

pub fn refuse_snippet(restricting: Option<&str>) -> String {
    let never = "snippets are never executed";
    match restricting {
        Some(directive) => format!(
            "{never}, and this one restricts access ({directive}): the rules answer 503 until it is replaced by an \
             annotation or removed"
        ),
        None => format!("{never}; see docs/migrate-from-ingress-nginx.md for replacements"),
    }
}

/// Reads a snippet into the draft. A finding for each directive, or one if the snippet can't be read.
pub(crate) fn read_snippet(
    kind: SnippetKind,
    draft: &mut Draft,
    key: &str,
    text: &str,
) -> Vec<Finding> {
    let finding = |part, outcome, closes| Finding { key: key.to_owned(), part, outcome, closes };
    let directives = match read_directives(text) {
        Ok(directives) => directives,
        Err(error) => {
            let why = format!("can't be read: {error}");
            draft.close(key, &why);
            return vec![finding(None, AnnotationOutcome::Refused(why), true)];
        }
    };
    let level = match kind {
        SnippetKind::Server => SnippetLevel::Server,
        SnippetKind::Location | SnippetKind::Other => SnippetLevel::Location,
    };
    let (scope, found) = read_scope(&directives, level);
    match level {
        SnippetLevel::Server => draft.server_snippet = scope,
        SnippetLevel::Location => draft.location_snippet = scope,
    }
    let mut findings = Vec::new();
    for DirectiveFinding { line, text, outcome } in found {
        let (outcome, closes) = match outcome {
            DirectiveOutcome::Honoured => (AnnotationOutcome::Honoured, false),
            DirectiveOutcome::NotNeeded(why) => (AnnotationOutcome::NotNeeded(why), false),
            DirectiveOutcome::Refused { why, closes } => {
                let why = format!("line {line} ({}) {why}", super::shorten(&text));
                if closes {
                    draft.close(key, &why);
                }
                (AnnotationOutcome::Refused(why), closes)
            }
        };
        findings.push(finding(Some(text), outcome, closes));
    }
    findings
}
