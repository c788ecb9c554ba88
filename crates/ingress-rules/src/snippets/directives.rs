//! The directives of snippets that are honoured, and what is refused.
//!
//! Invariant: a directive is honoured as a whole, with the effect that it has in ingress-nginx, or refused as a whole.
//! One that could restrict access and is refused closes the rules: so does every directive that is not known.

use http::{HeaderName, HeaderValue, StatusCode};
use lb_http::policy::Satisfy;
use lb_http::snippet::{
    AddedHeader, HeaderChange, HeaderTemplate, HeaderVariable, ReturnedResponse, SourceRule,
    TemplatePart,
};

use super::super::annotations::values::{
    Parsed, header_name, header_value, is_reserved, parse_sources, parse_template, parse_word,
};
use super::harmless::is_harmless;
use super::restrictions::find_swallowed_restriction;
use super::syntax::Directive;

/// Where directives are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnippetLevel {
    /// `server-snippet`
    Server,
    /// `configuration-snippet`
    Location,
}

/// What the directives of one level ask for.
#[derive(Clone, Debug, Default)]
pub struct SnippetScope {
    pub returned: Option<ReturnedResponse>,
    /// Of what is returned.
    pub media_type: Option<HeaderValue>,
    pub sources: Vec<SourceRule>,
    pub satisfy: Option<Satisfy>,
    pub request_headers: Vec<(HeaderName, HeaderTemplate)>,
    pub hidden_headers: Vec<HeaderName>,
    pub response_headers: Vec<HeaderChange>,
    pub added_headers: Vec<AddedHeader>,
    pub no_access_log: bool,
    pub locations: Vec<SnippetLocation>,
}

/// A path whose requests are denied.
#[derive(Clone, Debug)]
pub struct SnippetLocation {
    pub path: Box<str>,
    pub is_exact: bool,
    /// nginx prefers it to all expressions.
    pub is_preferred: bool,
}

/// What becomes of one directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectiveOutcome {
    Honoured,
    NotNeeded(&'static str),
    Refused { why: String, closes: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectiveFinding {
    pub line: usize,
    pub text: String,
    pub outcome: DirectiveOutcome,
}

/// Each header is looked at for each request.
const MOST_HEADERS: usize = 64;
/// Each is a rule of all hosts of the Ingress.
const MOST_LOCATIONS: usize = 32;

/// Headers that endpoints get in any case, with the values that people write for them.
const SENT_ANYWAY: [(&str, &[&str]); 8] = [
    ("connection", &["", "upgrade", "$connection_upgrade", "$http_connection"]),
    ("host", &["$host", "$http_host", "$best_http_host"]),
    ("upgrade", &["$http_upgrade"]),
    ("x-forwarded-for", &["$remote_addr", "$proxy_add_x_forwarded_for"]),
    ("x-forwarded-host", &["$host", "$http_host", "$best_http_host"]),
    ("x-forwarded-proto", &["$scheme", "$pass_access_scheme"]),
    ("x-real-ip", &["$remote_addr"]),
    ("x-request-id", &["$req_id", "$request_id"]),
];

const OF_WHOLE_HOST: &str = "restricts access in server-snippet, where nginx applies it to all Ingresses of the host: move it to \
     configuration-snippet of each";

const OF_RESPONSES: [(&str, HeaderVariable); 3] = [
    ("remote_addr", HeaderVariable::ClientAddress),
    ("scheme", HeaderVariable::Scheme),
    ("request_method", HeaderVariable::Method),
];
const OF_REQUESTS: [(&str, HeaderVariable); 5] = [
    OF_RESPONSES[0],
    OF_RESPONSES[1],
    OF_RESPONSES[2],
    ("host", HeaderVariable::Host),
    ("http_host", HeaderVariable::HttpHost),
];

/// Reads the directives of one level.
pub fn read_scope(
    directives: &[Directive],
    level: SnippetLevel,
) -> (SnippetScope, Vec<DirectiveFinding>) {
    let mut scope = SnippetScope::default();
    let mut findings = Vec::new();
    for directive in directives {
        let outcome = match read_directive(directive, level, &mut scope) {
            Ok(outcome) => outcome,
            Err(why) => DirectiveOutcome::Refused { why, closes: !is_harmless(directive) },
        };
        findings.push(DirectiveFinding {
            line: directive.line,
            text: directive.to_string(),
            outcome,
        });
    }
    findings.sort_by_key(|finding| finding.line);
    (scope, findings)
}

fn read_directive(
    directive: &Directive,
    level: SnippetLevel,
    scope: &mut SnippetScope,
) -> Parsed<DirectiveOutcome> {
    let words: Vec<&str> = directive.words.iter().map(String::as_str).collect();
    let name = directive.name.as_str();
    if name == "location" && level == SnippetLevel::Server {
        let location = read_location(directive, &words, scope.locations.len())?;
        scope.locations.push(location);
        return Ok(DirectiveOutcome::Honoured);
    }
    if let Some(next) = find_swallowed_restriction(name, &directive.words) {
        return Err(format!("goes on with {next}: is there a ; missing before it?"));
    }
    if directive.block.is_some() {
        return Err("is not read: blocks depend on more than can be known here".to_owned());
    }
    let more_headers = match name {
        "more_set_headers" | "more_clear_headers" => words.len(),
        "add_header" | "proxy_hide_header" | "proxy_set_header" => 1,
        _ => 0,
    };
    if scope.count_headers() + more_headers > MOST_HEADERS {
        return Err(format!("is one of more than {MOST_HEADERS} headers"));
    }
    match (name, &words[..]) {
        ("allow" | "deny" | "satisfy" | "return", _) if level == SnippetLevel::Server => {
            return Err(OF_WHOLE_HOST.to_owned());
        }
        ("more_set_headers", lines) => set_headers(scope, lines)?,
        ("more_clear_headers", names) => {
            let cleared: Vec<_> =
                names.iter().map(|name| parse_changeable_name(name)).collect::<Parsed<_>>()?;
            scope.response_headers.extend(cleared.into_iter().map(HeaderChange::Clear));
        }
        ("add_header", [name, value, rest @ ..]) => {
            let always = match rest {
                [] => false,
                ["always"] => true,
                _ => return Err("has more than a name, a value and `always`".to_owned()),
            };
            let (name, value) =
                (parse_changeable_name(name)?, parse_header_template(value, &OF_RESPONSES)?);
            scope.added_headers.push(AddedHeader { name, value, always });
        }
        ("proxy_hide_header", [name]) => {
            scope.hidden_headers.push(parse_changeable_name(name)?);
        }
        ("access_log", ["off"]) => scope.no_access_log = true,
        ("default_type", [text]) => scope.media_type = Some(header_value(text)?),
        ("return", words) => {
            let returned = read_return(words)?;
            // The first one is executed.
            scope.returned.get_or_insert(returned);
        }
        ("allow" | "deny", [source]) => {
            scope.sources.push(read_source(source, name == "allow")?);
        }
        ("satisfy", [word]) if scope.satisfy.is_none() => {
            scope.satisfy =
                Some(parse_word(word, &[("all", Satisfy::All), ("any", Satisfy::Any)])?);
        }
        ("proxy_set_header", [_, _]) if level == SnippetLevel::Server => {
            return Ok(DirectiveOutcome::NotNeeded(
                "has no effect in ingress-nginx either: its locations set headers themselves",
            ));
        }
        ("proxy_set_header", [name, value]) if level == SnippetLevel::Location => {
            if is_sent_anyway(name, value) {
                return Ok(DirectiveOutcome::NotNeeded("is what endpoints get anyway"));
            }
            let name = parse_changeable_name(name)?;
            scope.request_headers.push((name, parse_header_template(value, &OF_REQUESTS)?));
        }
        _ => return Err("is not read".to_owned()),
    }
    Ok(DirectiveOutcome::Honoured)
}

impl SnippetScope {
    fn count_headers(&self) -> usize {
        self.request_headers.len()
            + self.hidden_headers.len()
            + self.response_headers.len()
            + self.added_headers.len()
    }
}

/// The name of a header that snippets may change: those that annotations may change.
fn parse_changeable_name(name: &str) -> Parsed<HeaderName> {
    if name.starts_with('-') {
        return Err("has options".to_owned());
    }
    if name.contains('*') {
        return Err("has a name with *".to_owned());
    }
    let name = header_name(name)?;
    match is_reserved(&name) {
        true => Err(format!("changes {name}, which the proxy itself controls")),
        false => Ok(name),
    }
}

fn set_headers(scope: &mut SnippetScope, lines: &[&str]) -> Parsed<()> {
    let one = |line: &&str| {
        let (name, value) = line.split_once(':').ok_or("has a word without a colon")?;
        Ok(HeaderChange::Set(
            parse_changeable_name(name)?,
            parse_header_template(value.trim(), &OF_RESPONSES)?,
        ))
    };
    let changes = lines.iter().map(one).collect::<Parsed<Vec<_>>>()?;
    scope.response_headers.extend(changes);
    Ok(())
}

/// A value with these variables.
fn parse_header_template(text: &str, known: &[(&str, HeaderVariable)]) -> Parsed<HeaderTemplate> {
    header_value(text)?;
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        if !before.is_empty() {
            parts.push(TemplatePart::Text(before.into()));
        }
        let (name, after) = variable_name(after).ok_or("has a $ without a name")?;
        let variable = known.iter().find(|(known, _)| *known == name);
        let (_, variable) = variable.ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|(known, _)| *known).collect();
            format!("has a variable other than ${}", known.join(", $"))
        })?;
        parts.push(TemplatePart::Variable(*variable));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(TemplatePart::Text(rest.into()));
    }
    Ok(HeaderTemplate(parts))
}

/// `name` or `{name}`, and what follows.
fn variable_name(text: &str) -> Option<(&str, &str)> {
    if let Some(braced) = text.strip_prefix('{') {
        return braced.split_once('}');
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn read_source(text: &str, is_allowed: bool) -> Parsed<SourceRule> {
    let network = match text {
        "all" => None,
        text => match parse_sources(text)?[..] {
            [network] => Some(network),
            _ => return Err("has more than one address or range".to_owned()),
        },
    };
    Ok(SourceRule { network, is_allowed })
}

fn read_return(words: &[&str]) -> Parsed<ReturnedResponse> {
    let is_number = |text: &str| text.bytes().all(|octet| octet.is_ascii_digit());
    let (code, text) = match words {
        [url] if !is_number(url) => ("302", Some(*url)),
        [code] => (*code, None),
        [code, text] => (*code, Some(*text)),
        _ => return Err("has neither one word nor two".to_owned()),
    };
    // 444 closes the connection.
    let status = code.parse().ok().filter(|code| (200..600).contains(code) && *code != 444);
    let status = status.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or_else(|| format!("has the code {code:?}, which is not possible"))?;
    if let 301 | 302 | 303 | 307 | 308 = status.as_u16() {
        let location = parse_template(text.ok_or("has no URL")?)?;
        return Ok(ReturnedResponse::Redirect { status, location });
    }
    if text.is_some_and(|text| text.contains('$')) {
        return Err("has a variable in its text".to_owned());
    }
    // nginx has pages for errors only.
    let text = text.or((status.as_u16() < 300).then_some(""));
    let media_type = HeaderValue::from_static("text/html");
    Ok(ReturnedResponse::Text { status, media_type, text: text.map(Into::into) })
}

fn is_sent_anyway(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let value = value.to_ascii_lowercase();
    SENT_ANYWAY.iter().any(|(known, values)| *known == name && values.contains(&&*value))
}

/// Only locations that deny everything. `known`: how many there are.
fn read_location(directive: &Directive, words: &[&str], known: usize) -> Parsed<SnippetLocation> {
    let (path, is_exact, is_preferred) = match words {
        [path] => (*path, false, false),
        ["=", path] => (*path, true, false),
        ["^~", path] => (*path, false, true),
        _ => return Err("is not read: only paths without expressions are".to_owned()),
    };
    let is_normal = path.starts_with('/')
        && !path.contains(['$', '?', '#', '%'])
        && lb_http::path::normalize_path(path).is_ok_and(|normal| normal == path);
    if !is_normal {
        return Err(format!("has {path:?}, which is no path in its normal form"));
    }
    if known == MOST_LOCATIONS {
        return Err(format!("is one of more than {MOST_LOCATIONS} locations"));
    }
    let block = directive.block.as_deref().ok_or("has no block")?;
    // What is harmless makes no difference to requests that are denied.
    let mut others = block.iter().filter(|inner| !is_harmless(inner));
    match (others.next(), others.next()) {
        (Some(only), None)
            if only.name == "deny" && only.words == ["all"] && only.block.is_none() => {}
        _ => {
            return Err("has something else than `deny all`: in nginx it is for all Ingresses of \
                        the host"
                .to_owned());
        }
    }
    Ok(SnippetLocation { path: path.into(), is_exact, is_preferred })
}
