//! The declaration of an annotation.

use super::super::snippets::SnippetKind;
use super::draft::Draft;

/// An annotation of Ingresses, under its names.
#[derive(Clone, Copy, Debug)]
pub struct Annotation {
    /// Name after [`super::MILLRACE`]; empty: only ingress-nginx has it.
    pub name: &'static str,
    /// Names after [`super::NGINX`].
    pub nginx: &'static [&'static str],
    /// What values look like.
    pub value: &'static str,
    /// One sentence for the documentation.
    pub doc: &'static str,
    pub effect: Effect,
    /// How the effect differs from ingress-nginx's; empty: it does not.
    pub differs: &'static str,
    /// Whether access would be open if it were ignored.
    pub restricts: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Effect {
    Set(fn(&mut Draft, &str) -> Result<(), String>),
    /// Accepted, and nothing has to be done. Why.
    Nothing(&'static str),
    /// Not supported, which matters unless the value is one of these.
    Unsupported {
        why: &'static str,
        harmless: &'static [&'static str],
    },
    /// Configuration of another program: never executed.
    Snippet(SnippetKind),
}

impl Annotation {
    pub(super) const fn set(
        name: &'static str,
        nginx: &'static [&'static str],
        value: &'static str,
        set: fn(&mut Draft, &str) -> Result<(), String>,
        doc: &'static str,
    ) -> Self {
        let effect = Effect::Set(set);
        Self { name, nginx, value, doc, effect, differs: "", restricts: false }
    }

    pub(super) const fn restricting(self) -> Self {
        Self { restricts: true, ..self }
    }

    pub(super) const fn differs(self, differs: &'static str) -> Self {
        Self { differs, ..self }
    }

    pub(super) const fn nothing(nginx: &'static [&'static str], why: &'static str) -> Self {
        let effect = Effect::Nothing(why);
        Self { name: "", nginx, value: "", doc: "", effect, differs: "", restricts: false }
    }

    pub(super) const fn unsupported(
        nginx: &'static [&'static str],
        harmless: &'static [&'static str],
        why: &'static str,
    ) -> Self {
        let effect = Effect::Unsupported { why, harmless };
        Self { name: "", nginx, value: "", doc: "", effect, differs: "", restricts: false }
    }
}
