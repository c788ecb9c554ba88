//! What becomes of Ingresses here: `millrace ingress report`, before a migration.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::Ingress;
use lb_rules::model::ServiceName;
use serde::Serialize;

use super::annotations::{self, AnnotationOutcome, Draft, Finding};
use super::paths;

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
pub fn report_annotations<'a>(ingresses: impl IntoIterator<Item = &'a Ingress>) -> Vec<Line> {
    ingresses.into_iter().flat_map(of_ingress).collect()
}

fn of_ingress(ingress: &Ingress) -> Vec<Line> {
    let name = ServiceName::of(&ingress.metadata);
    let none = BTreeMap::new();
    let annotations = ingress.metadata.annotations.as_ref().unwrap_or(&none);
    let (draft, findings) = annotations::read_annotations(annotations);
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
            let (verdict, detail) = decide_verdict(finding);
            let value = annotations.get(&finding.key).map_or("", String::as_str);
            line(verdict, &finding.key, value, detail)
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
                "nginx.ingress.kubernetes.io/mirror-target": "https://b",
                "nginx.ingress.kubernetes.io/auth-tls-match-cn": "CN=a",
                "nginx.ingress.kubernetes.io/configuration-snippet": "deny all;",
                "nginx.ingress.kubernetes.io/use-regex": "true",
                "example.org/other": "x"
            }},
            "spec": {"rules": [{"http": {"paths": [
                {"path": "/(?=x)", "pathType": "ImplementationSpecific", "backend": {}}
            ]}}]}
        }))
        .unwrap();
        let lines = report_annotations([&ingress]);
        let short: Vec<(&str, &str)> = lines
            .iter()
            .map(|l| (l.subject.rsplit('/').next().unwrap(), l.verdict.name()))
            .collect();
        assert_eq!(
            short,
            [
                ("auth-tls-match-cn", "refused"),
                ("configuration-snippet", "refused"),
                ("limit-rps", "differs"),
                ("mirror-target", "ignored"),
                ("proxy-body-size", "honoured"),
                ("proxy-buffering", "ignored"),
                ("use-regex", "differs"),
                ("spec.rules[0].http.paths[0].path", "refused"),
            ]
        );
        assert!(lines[0].detail.contains("503"), "{:?}", lines[0]);
    }
}
