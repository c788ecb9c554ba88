//! Templates with variables of nginx, which stand for parts of a request.

use super::facts::Facts;

/// Replaces the variables of a configured URL, which are nginx's: parts of what was asked for.
pub(crate) fn fill_template(template: &str, facts: &Facts) -> String {
    let mut text = String::with_capacity(template.len() + facts.path.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        rest = after;
        let name = &after[..after.find(|next| !is_word(next)).unwrap_or(after.len())];
        match name {
            "scheme" => text.push_str(if facts.is_tls { "https" } else { "http" }),
            "host" => text.push_str(facts.authority.map_or("", |authority| &authority.host)),
            "http_host" => push_authority(&mut text, facts),
            "uri" => text.push_str(facts.path),
            "args" => text.push_str(facts.query.unwrap_or_default()),
            "is_args" => text.push_str(facts.query.map_or("", |_| "?")),
            "request_uri" => text.push_str(&path_and_query(facts)),
            "escaped_request_uri" => push_escaped(&mut text, &path_and_query(facts)),
            _ => {
                text.push('$');
                continue;
            }
        }
        rest = &after[name.len()..];
    }
    text.push_str(rest);
    text
}

/// Host and port as the client has named them.
fn push_authority(text: &mut String, facts: &Facts) {
    let Some(authority) = facts.authority else { return };
    text.push_str(&authority.host);
    if let Some(port) = authority.port {
        text.push_str(&format!(":{port}"));
    }
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// As the value of an argument of a query.
fn push_escaped(text: &mut String, value: &str) {
    for octet in value.bytes() {
        if octet.is_ascii_alphanumeric() || b"-._~/".contains(&octet) {
            text.push(octet.into());
        } else {
            text.push_str(&format!("%{octet:02X}"));
        }
    }
}

pub(crate) fn path_and_query(facts: &Facts) -> String {
    match facts.query {
        Some(query) => format!("{}?{query}", facts.path),
        None => facts.path.to_string(),
    }
}
