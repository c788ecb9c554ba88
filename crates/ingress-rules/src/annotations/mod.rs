//! The annotations of Ingresses. Each is declared once: from its declaration follow how it is read, its line in
//! `docs/ingress.md`, and what `millrace ingress report` says about it.
//!
//! Invariant: an annotation that restricts access and cannot be honoured closes the rules of its Ingress.

mod access;
mod annotation;
mod balance;
mod canary;
mod client_tls;
mod cors;
mod draft;
mod endpoints;
mod forwarding;
mod hosts;
mod jwt;
mod jwt_draft;
mod limits;
mod mirror;
mod oidc;
mod oidc_draft;
mod redirects;
#[cfg(test)]
mod reference;
mod snippets;
mod tracing;
mod unused;
pub(crate) mod values;

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use super::snippets::{SnippetKind, SnippetReading, restricting_directive};

pub use annotation::{Annotation, Effect};
pub use canary::expression_error;
pub use draft::{CanaryDraft, Draft, VerifyClient};
pub(crate) use jwt_draft::JwtDraft;
pub(crate) use oidc_draft::OidcDraft;

pub const MILLRACE: &str = "ingress.millrace.io/";
pub const NGINX: &str = "nginx.ingress.kubernetes.io/";

/// All annotations, in the order of the documentation.
pub fn all_annotations() -> impl Iterator<Item = &'static Annotation> {
    let tables: [&'static [Annotation]; 17] = [
        forwarding::TABLE,
        mirror::TABLE,
        tracing::TABLE,
        redirects::TABLE,
        access::TABLE,
        jwt::TABLE,
        oidc::TABLE,
        balance::TABLE,
        cors::TABLE,
        canary::TABLE,
        limits::TABLE,
        client_tls::TABLE,
        endpoints::TABLE,
        hosts::TABLE,
        unused::NOTHING,
        unused::UNSUPPORTED,
        snippets::TABLE,
    ];
    tables.into_iter().flatten()
}

/// The key under which an Ingress has the annotation that Millrace calls by this name.
pub(crate) fn annotation_key(name: &str, annotations: &BTreeMap<String, String>) -> String {
    let declared = DECLARED.iter().find(|annotation| annotation.name == name);
    let mut keys = declared.into_iter().flat_map(|annotation| annotation.keys());
    keys.find(|key| annotations.contains_key(key)).unwrap_or_else(|| format!("{MILLRACE}{name}"))
}

/// What becomes of one annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnotationOutcome {
    Honoured,
    /// How its effect differs from ingress-nginx's.
    Differs(&'static str),
    /// An annotation that has no effect, and needs none.
    NotNeeded(&'static str),
    /// An annotation that would have an effect elsewhere, and has none here.
    Unsupported(String),
    /// Its value is invalid, or it is never executed.
    Refused(String),
    /// Another annotation takes its place.
    Overridden(String),
}

impl AnnotationOutcome {
    /// What its author should know.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Unsupported(why) | Self::Refused(why) => Some(why),
            Self::Honoured | Self::Differs(_) | Self::NotNeeded(_) | Self::Overridden(_) => None,
        }
    }
}

/// An annotation of an Ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub key: String,
    /// The directive of a snippet.
    pub part: Option<String>,
    pub outcome: AnnotationOutcome,
    /// The annotation closes the rules.
    pub closes: bool,
}

/// By key: the position of its declaration, and of the key in it.
static KEYS: LazyLock<HashMap<String, (usize, usize)>> = LazyLock::new(|| {
    let keys = |(index, annotation): (usize, &Annotation)| {
        let keys: Vec<String> = annotation.keys().collect();
        keys.into_iter().enumerate().map(move |(rank, key)| (key, (index, rank)))
    };
    all_annotations().enumerate().flat_map(keys).collect()
});

static DECLARED: LazyLock<Vec<&Annotation>> = LazyLock::new(|| all_annotations().collect());

/// Reads all annotations of an Ingress.
pub(crate) fn read_annotations(
    annotations: &BTreeMap<String, String>,
    snippets: SnippetReading,
) -> (Draft, Vec<Finding>) {
    let mut draft = Draft::default();
    let mut findings = Vec::new();
    let mut known = Vec::new();
    let mut guesses = MOST_GUESSES;
    for (key, value) in annotations {
        match KEYS.get(key) {
            Some(&(index, rank)) => known.push((index, rank, key, value)),
            None if key.starts_with(MILLRACE) || key.starts_with(NGINX) => {
                let outcome = AnnotationOutcome::Unsupported(unknown(key, &mut guesses));
                findings.push(Finding { key: key.clone(), part: None, outcome, closes: false });
            }
            None => {}
        }
    }
    // In the order of the declarations: some depend on others.
    known.sort();
    let mut last: Option<(usize, &String)> = None;
    for (index, _, key, value) in known {
        let (outcome, closes) = match (last, DECLARED[index].effect) {
            (Some((other, by)), _) if other == index => {
                let why = format!("{by} is set, too, and takes precedence");
                (AnnotationOutcome::Overridden(why), false)
            }
            (_, Effect::Snippet(kind @ (SnippetKind::Location | SnippetKind::Server)))
                if snippets == SnippetReading::Allowed =>
            {
                findings.extend(snippets::read_snippet(kind, &mut draft, key, value));
                continue;
            }
            _ => DECLARED[index].apply(&mut draft, key, value),
        };
        if last.is_none_or(|(other, _)| other != index) {
            last = Some((index, key));
        }
        findings.push(Finding { key: key.clone(), part: None, outcome, closes });
    }
    findings.sort_by(|a, b| a.key.cmp(&b.key));
    (draft, findings)
}

/// A value in a message: the beginning, if it is long.
fn quoted(value: &str) -> String {
    match value.char_indices().nth(MOST_QUOTED) {
        Some((end, _)) => format!("{:?}...", &value[..end]),
        None => format!("{value:?}"),
    }
}

/// A text in a message, on one line.
pub(crate) fn shorten(text: &str) -> String {
    let shown: String =
        text.chars().take(MOST_QUOTED).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if shown.len() < text.len() { shown + "..." } else { shown }
}

const MOST_QUOTED: usize = 100;

/// Names for which similar ones are looked for: an Ingress may have thousands of annotations.
const MOST_GUESSES: usize = 8;
const MOST_DIFFERENCES: usize = 3;

fn unknown(key: &str, guesses: &mut usize) -> String {
    if *guesses == 0 {
        return "is not known, and has no effect".to_owned();
    }
    *guesses -= 1;
    let similar = KEYS.keys().filter(|known| known.len().abs_diff(key.len()) <= MOST_DIFFERENCES);
    let near = similar.map(|known| (strsim::damerau_levenshtein(known, key), known)).min();
    match near {
        Some((distance, name)) if distance <= MOST_DIFFERENCES => {
            format!("is not known; is {name} meant?")
        }
        _ => "is not known, and has no effect".to_owned(),
    }
}

impl Annotation {
    /// Its complete names; the first that is set counts.
    pub fn keys(&self) -> impl Iterator<Item = String> + use<> {
        let own = Some(self.name).filter(|name| !name.is_empty());
        let nginx = self.nginx.iter().map(|name| format!("{NGINX}{name}"));
        own.map(|name| format!("{MILLRACE}{name}")).into_iter().chain(nginx)
    }

    /// The outcome, and whether it closes the rules.
    fn apply(&self, draft: &mut Draft, key: &str, value: &str) -> (AnnotationOutcome, bool) {
        let (outcome, why) = match self.effect {
            Effect::Set(set) => match set(draft, value) {
                Ok(()) if self.differs.is_empty() || key.starts_with(MILLRACE) => {
                    return (AnnotationOutcome::Honoured, false);
                }
                Ok(()) => return (AnnotationOutcome::Differs(self.differs), false),
                Err(why) => {
                    let why = format!("{} {why}", quoted(value));
                    (AnnotationOutcome::Refused(why.clone()), why)
                }
            },
            Effect::Nothing(why) => return (AnnotationOutcome::NotNeeded(why), false),
            Effect::Unsupported { harmless, .. } if harmless.contains(&value.trim()) => {
                return (AnnotationOutcome::NotNeeded("this is what happens anyway"), false);
            }
            Effect::Unsupported { why, .. } => {
                (AnnotationOutcome::Unsupported(why.to_owned()), why.to_owned())
            }
            Effect::Snippet(_) => {
                let restricting = restricting_directive(value);
                let refusal = snippets::refuse_snippet(restricting.as_deref());
                let outcome = AnnotationOutcome::Refused(refusal);
                let Some(directive) = restricting else { return (outcome, false) };
                (outcome, format!("it restricts access ({directive})"))
            }
        };
        if self.restricts {
            draft.close(key, &why);
        }
        (outcome, self.restricts)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn read_one(key: &str, value: &str) -> (Draft, Vec<Finding>) {
        let annotations = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        read_annotations(&annotations, SnippetReading::Refused)
    }

    #[test]
    fn no_name_is_declared_twice() {
        let mut seen = BTreeSet::new();
        for key in all_annotations().flat_map(Annotation::keys) {
            assert!(seen.insert(key.clone()), "{key}");
        }
    }

    #[test]
    fn every_annotation_says_what_it_does() {
        for annotation in all_annotations() {
            let names = (annotation.name, annotation.nginx);
            match annotation.effect {
                Effect::Set(_) => {
                    assert!(
                        !annotation.doc.is_empty() && !annotation.value.is_empty(),
                        "{names:?}"
                    );
                }
                Effect::Nothing(why) | Effect::Unsupported { why, .. } => {
                    assert!(!why.is_empty(), "{names:?}");
                }
                Effect::Snippet(_) => {}
            }
        }
    }

    /// Whatever is written into an annotation that restricts access: it is honoured, or the rules are closed.
    #[test]
    fn a_restriction_with_a_bad_value_closes() {
        let restricting = |annotation: &&Annotation| {
            annotation.restricts && !matches!(annotation.effect, Effect::Snippet(_))
        };
        for annotation in all_annotations().filter(restricting) {
            for key in annotation.keys() {
                for value in ["", "\u{0}", "nonsense value", "$x", "-1"] {
                    let (draft, findings) = read_one(&key, value);
                    let refused = findings[0].outcome.problem().is_some();
                    assert!(!refused || draft.closed.is_some(), "{key}: {value:?}");
                }
            }
        }
    }

    #[test]
    fn ours_takes_precedence_and_unknown_ones_are_named() {
        let both = BTreeMap::from([
            (format!("{MILLRACE}max-body-size"), "2m".to_owned()),
            (format!("{NGINX}proxy-body-size"), "1m".to_owned()),
        ]);
        let (draft, findings) = read_annotations(&both, SnippetReading::Refused);
        assert_eq!(draft.max_body, Some(2 << 20));
        assert!(matches!(findings[1].outcome, AnnotationOutcome::Overridden(_)), "{findings:?}");
        let (_, findings) = read_one(&format!("{NGINX}proxy-body-sise"), "1m");
        let problem = findings[0].outcome.problem().unwrap();
        assert_eq!(problem, format!("is not known; is {NGINX}proxy-body-size meant?"));
    }
}
