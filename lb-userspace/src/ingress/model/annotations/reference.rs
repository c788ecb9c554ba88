//! The tables of annotations in `docs/ingress.md`, generated from the declarations.

use std::fmt::Write;
use std::path::Path;

use super::{Annotation, Effect, MILLRACE, NGINX, all};

const BEGIN: &str = "<!-- Generated from the code: UPDATE_EXPECT=1 cargo test -p lb-userspace --lib annotations::reference -->\n";
const END: &str = "<!-- End of the generated part -->\n";

fn tables() -> String {
    let mut text = format!(
        "\nThe first column is the name after `{MILLRACE}`, the second the one after `{NGINX}`. Annotations marked with \
         \u{2020} restrict access: if one can't be honoured, the Ingress's rules answer 503.\n\n\
         | name | of ingress-nginx | value | effect |\n| --- | --- | --- | --- |\n"
    );
    for annotation in all().filter(|annotation| matches!(annotation.effect, Effect::Set(_))) {
        let Annotation { name, value, doc, differs, restricts, .. } = annotation;
        let mark = if *restricts { "\u{2020}" } else { "" };
        let nginx = names(annotation.nginx);
        let _ = write!(text, "| `{name}`{mark} | {nginx} | {} | {}", cell(value), cell(doc));
        if !differs.is_empty() {
            let _ = write!(text, ". *Differs from ingress-nginx:* {}", cell(differs));
        }
        text.push_str(" |\n");
    }
    let _ =
        write!(text, "\nAccepted without effect:\n\n| of ingress-nginx | why |\n| --- | --- |\n");
    for annotation in all() {
        if let Effect::Nothing(why) = annotation.effect {
            let _ = writeln!(text, "| {} | {} |", names(annotation.nginx), cell(why));
        }
    }
    let _ = write!(
        text,
        "\nNot supported, and reported as an Event of the Ingress:\n\n| of ingress-nginx | why |\n| --- | --- |\n"
    );
    for annotation in all() {
        let mark = if annotation.restricts { "\u{2020}" } else { "" };
        let names = names(annotation.nginx);
        match annotation.effect {
            Effect::Unsupported { why, .. } => {
                let _ = writeln!(text, "| {names}{mark} | {} |", cell(why));
            }
            Effect::Snippet => {
                let why = "snippets are never executed; one that restricts access closes the rules";
                let _ = writeln!(text, "| {names}{mark} | {why} |");
            }
            Effect::Set(_) | Effect::Nothing(_) => {}
        }
    }
    text + "\n"
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ingress.md");
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
         UPDATE_EXPECT=1 cargo test -p lb-userspace --lib annotations::reference"
    );
}
