//! The tables of annotations in `docs/ingress.md`, generated from the declarations.

use std::fmt::Write;
use std::path::Path;

use super::super::snippets::SnippetKind;
use super::{Annotation, Effect, MILLRACE, NGINX, all_annotations};

const BEGIN: &str = "<!-- Generated from the code: UPDATE_EXPECT=1 cargo test -p lb-ingress-rules --lib annotations::reference -->\n";
const END: &str = "<!-- End of the generated part -->\n";

fn tables() -> String {
    let mut text = format!(
        "\nAnnotations marked with \u{2020} restrict: if one can't be honoured, the Ingress's rules answer 503. \
         *Differs:* what Millrace does otherwise than ingress-nginx.\n\n\
         | `{MILLRACE}` | `{NGINX}` | value | effect |\n| --- | --- | --- | --- |\n"
    );
    for annotation in
        all_annotations().filter(|annotation| matches!(annotation.effect, Effect::Set(_)))
    {
        let Annotation { name, value, doc, differs, restricts, .. } = annotation;
        let mark = if *restricts { "\u{2020}" } else { "" };
        let nginx = names(annotation.nginx);
        let _ = write!(text, "| `{name}`{mark} | {nginx} | {} | {}", cell(value), cell(doc));
        if !differs.is_empty() {
            let _ = write!(text, ". *Differs:* {}", cell(differs));
        }
        text.push_str(" |\n");
    }
    let _ =
        write!(text, "\nAccepted without effect:\n\n| of ingress-nginx | why |\n| --- | --- |\n");
    text += &rows_by_reason(all_annotations().filter_map(|annotation| match annotation.effect {
        Effect::Nothing(why) => Some((names(annotation.nginx), why)),
        _ => None,
    }));
    let _ = write!(
        text,
        "\nNot supported, and reported as an Event of the Ingress:\n\n| of ingress-nginx | why |\n| --- | --- |\n"
    );
    text += &rows_by_reason(all_annotations().filter_map(|annotation| {
        let why = match annotation.effect {
            Effect::Unsupported { why, .. } => why,
            Effect::Snippet(SnippetKind::Location | SnippetKind::Server) => {
                "[honoured in part](migrate-from-ingress-nginx.md#2-replace-snippets), or refused as others"
            }
            Effect::Snippet(SnippetKind::Other) => {
                "snippets are never executed; one that restricts access closes the rules"
            }
            Effect::Set(_) | Effect::Nothing(_) => return None,
        };
        let mark = if annotation.restricts { "\u{2020}" } else { "" };
        Some((names(annotation.nginx) + mark, why))
    }));
    text + "\n"
}

/// Rows of names and the reason that they share, in the order of the first name.
fn rows_by_reason<'a>(named: impl Iterator<Item = (String, &'a str)>) -> String {
    let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
    for (names, why) in named {
        match rows.iter_mut().find(|(other, _)| *other == why) {
            Some((_, others)) => others.push(names),
            None => rows.push((why, vec![names])),
        }
    }
    let rows = rows.into_iter();
    rows.map(|(why, names)| format!("| {} | {} |\n", names.join(", "), cell(why))).collect()
}

fn names(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_tables_in_the_documentation_match_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ingress.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).expect("the page has the marker");
    let (_, tail) = rest.split_once(END).expect("the page has the marker of the end");
    let wanted = format!("{head}{BEGIN}{}{END}{tail}", tables());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(
        page == wanted,
        "docs/ingress.md is stale; regenerate it:\n\
         UPDATE_EXPECT=1 cargo test -p lb-ingress-rules --lib annotations::reference"
    );
}
