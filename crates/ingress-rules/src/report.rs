//! What becomes of Ingresses here: `millrace ingress report`, before a migration.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::Ingress;
use lb_rules::model::ServiceName;
use serde::Serialize;

use super::annotations::{self, AnnotationOutcome, Draft, Finding};
use super::paths;
use super::snippets::SnippetReading;

/// A line for each annotation that concerns Ingress controllers, and for each path that is not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    pub namespace: String,
    pub ingress: String,
    pub verdict: Verdict,
    /// Key of an annotation, or a field.
    pub subject: String,
    pub value: String,
    /// How it differs, or why it is ignored or refused.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Honoured,
    /// Honoured differently.
    Differs,
    Ignored,
    Refused,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Honoured => "honoured",
            Self::Differs => "differs",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
        }
    }
}

/// Whatever class they have: the report comes before the decision.
pub fn report_annotations<'a>(
    ingresses: impl IntoIterator<Item = &'a Ingress>,
    snippets: SnippetReading,
) -> Vec<Line> {
    ingresses.into_iter().flat_map(|ingress| of_ingress(ingress, snippets)).collect()
}

const WITHOUT_SETTING: &str = "is honoured only with the setting allow-snippet-annotations";

fn of_ingress(ingress: &Ingress, snippets: SnippetReading) -> Vec<Line> {
    let name = ServiceName::of(&ingress.metadata);
    let none = BTreeMap::new();
    let annotations = ingress.metadata.annotations.as_ref().unwrap_or(&none);
    let (draft, mut findings) = annotations::read_annotations(annotations, snippets);
    if snippets == SnippetReading::Refused {
        // What would become of each directive.
        let (_, read) = annotations::read_annotations(annotations, SnippetReading::Allowed);
        let directives = read.into_iter().filter(|finding| finding.part.is_some());
        findings.extend(directives.map(|finding| match finding.outcome {
            AnnotationOutcome::Honoured => {
                let outcome = AnnotationOutcome::Refused(WITHOUT_SETTING.to_owned());
                Finding { outcome, ..finding }
            }
            _ => finding,
        }));
        findings.sort_by(|a, b| a.key.cmp(&b.key));
    }
    let line = |verdict, subject: &str, value: &str, detail: String| Line {
        namespace: name.namespace.clone(),
        ingress: name.name.clone(),
        verdict,
        subject: subject.to_owned(),
        value: value.to_owned(),
        detail,
    };
    let mut lines: Vec<Line> = findings
        .iter()
        .map(|finding| {
            let (verdict, mut detail) = decide_verdict(finding);
            if let Some(directive) = &finding.part
                && !detail.starts_with("line ")
            {
                detail = format!("{} {detail}", annotations::shorten(directive)).trim().to_owned();
            }
            let value = finding.part.as_ref().or_else(|| annotations.get(&finding.key));
            line(verdict, &finding.key, value.map_or("", String::as_str), detail)
        })
        .collect();
    for (field, path, why) in bad_paths(ingress, &draft) {
        lines.push(line(Verdict::Refused, &field, &path, format!("{why}; not served")));
    }
    lines
}

fn decide_verdict(finding: &Finding) -> (Verdict, String) {
    let (verdict, detail) = match &finding.outcome {
        AnnotationOutcome::Honoured => (Verdict::Honoured, ""),
        AnnotationOutcome::Differs(how) => (Verdict::Differs, *how),
        AnnotationOutcome::NotNeeded(why) => (Verdict::Ignored, *why),
        AnnotationOutcome::Overridden(why) => (Verdict::Ignored, why.as_str()),
        AnnotationOutcome::Unsupported(why) if finding.closes => (Verdict::Refused, why.as_str()),
        AnnotationOutcome::Unsupported(why) => (Verdict::Ignored, why.as_str()),
        AnnotationOutcome::Refused(why) => (Verdict::Refused, why.as_str()),
    };
    let closed = if finding.closes && !detail.contains("503") {
        "; the rules answer 503, because this restricts access"
    } else {
        ""
    };
    (verdict, format!("{detail}{closed}"))
}

fn bad_paths(ingress: &Ingress, draft: &Draft) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let expressions = draft.reads_expressions();
    let rules = ingress.spec.iter().flat_map(|spec| spec.rules.iter().flatten());
    for (rule, paths) in rules.enumerate() {
        for (index, path) in paths.http.iter().flat_map(|http| &http.paths).enumerate() {
            let text = path.path.as_deref();
            if let Err(why) = paths::read_path(text, &path.path_type, expressions, draft.use_regex)
            {
                let field = format!("spec.rules[{rule}].http.paths[{index}].path");
                found.push((field, text.unwrap_or_default().to_owned(), why));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_annotation_has_a_verdict() {
        let ingress: Ingress = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "shop", "annotations": {
                "nginx.ingress.kubernetes.io/proxy-body-size": "8m",
                "nginx.ingress.kubernetes.io/limit-rps": "10",
                "nginx.ingress.kubernetes.io/proxy-buffering": "on",
                "nginx.ingress.kubernetes.io/proxy-cookie-path": "/a /b",
                "nginx.ingress.kubernetes.io/auth-tls-match-cn": "CN=a",
                "nginx.ingress.kubernetes.io/configuration-snippet": "deny all; gzip on;",
                "nginx.ingress.kubernetes.io/use-regex": "true",
                "example.org/other": "x"
            }},
            "spec": {"rules": [{"http": {"paths": [
                {"path": "/(?=x)", "pathType": "ImplementationSpecific", "backend": {}}
            ]}}]}
        }))
        .unwrap();
        let verdicts = |snippets| -> Vec<(String, &str)> {
            let lines = report_annotations([&ingress], snippets);
            let name = |line: &Line| line.subject.rsplit('/').next().unwrap().to_owned();
            lines.iter().map(|line| (name(line), line.verdict.name())).collect()
        };
        let expected = |snippet: &[&'static str]| -> Vec<(String, &str)> {
            let snippet = snippet.iter().map(|verdict| ("configuration-snippet", *verdict));
            let others = [
                ("limit-rps", "differs"),
                ("proxy-body-size", "honoured"),
                ("proxy-buffering", "ignored"),
                ("proxy-cookie-path", "ignored"),
                ("use-regex", "differs"),
                ("spec.rules[0].http.paths[0].path", "refused"),
            ];
            let all = [("auth-tls-match-cn", "refused")].into_iter().chain(snippet).chain(others);
            all.map(|(name, verdict)| (name.to_owned(), verdict)).collect()
        };
        // Without the setting, a line for the snippet, and one for each of its directives.
        let without = verdicts(SnippetReading::Refused);
        assert_eq!(without, expected(&["refused", "refused", "refused"]));
        assert_eq!(verdicts(SnippetReading::Allowed), expected(&["honoured", "refused"]));
        let lines = report_annotations([&ingress], SnippetReading::Allowed);
        assert_eq!((&*lines[1].value, &*lines[1].detail), ("deny all;", "deny all;"));
        assert_eq!(lines[2].detail, "line 1 (gzip on;) is not read");
        assert!(lines[0].detail.contains("503"), "{:?}", lines[0]);
    }
}
