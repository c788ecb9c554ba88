//! Names of spans, as `opentelemetry-operation-name` has them: text and variables.

use super::text::cut_text;

/// The longest name, as it is configured and as it is filled.
const MOST_OCTETS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanName(Vec<NamePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum NamePart {
    Text(String),
    Variable(NameVariable),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameVariable {
    Method,
    Host,
    Uri,
    LocationPath,
    Namespace,
    IngressName,
    ServiceName,
}

impl NameVariable {
    const ALL: [(&'static str, Self); 7] = [
        ("request_method", Self::Method),
        ("host", Self::Host),
        ("uri", Self::Uri),
        ("location_path", Self::LocationPath),
        ("namespace", Self::Namespace),
        ("ingress_name", Self::IngressName),
        ("service_name", Self::ServiceName),
    ];
}

/// What the variables stand for.
#[derive(Clone, Copy, Debug)]
pub struct SpanNameFacts<'a> {
    pub method: &'a str,
    pub host: &'a str,
    /// The request's, without query.
    pub path: &'a str,
    /// The rule's.
    pub route: &'a str,
    /// Of the Ingress.
    pub namespace: &'a str,
    pub ingress: &'a str,
    pub service: &'a str,
}

impl SpanName {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MOST_OCTETS || text.contains(char::is_control) {
            return Err(format!("is not a text of up to {MOST_OCTETS} octets on one line"));
        }
        let mut parts = Vec::new();
        let mut pieces = text.split('$');
        let push_text = |parts: &mut Vec<NamePart>, text: &str| {
            if !text.is_empty() {
                parts.push(NamePart::Text(text.to_owned()));
            }
        };
        push_text(&mut parts, pieces.next().unwrap_or_default());
        for piece in pieces {
            let end = piece.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (name, rest) = piece.split_at(end.unwrap_or(piece.len()));
            let known = NameVariable::ALL.iter().find(|(known, _)| *known == name);
            let (_, variable) = known.ok_or_else(|| {
                let names = NameVariable::ALL.map(|(name, _)| format!("${name}"));
                format!("has a variable other than {}", names.join(", "))
            })?;
            parts.push(NamePart::Variable(*variable));
            push_text(&mut parts, rest);
        }
        Ok(Self(parts))
    }

    pub fn fill(&self, facts: &SpanNameFacts<'_>) -> String {
        let mut text = String::with_capacity(MOST_OCTETS);
        for part in &self.0 {
            let part = match part {
                NamePart::Text(part) => part,
                NamePart::Variable(variable) => match variable {
                    NameVariable::Method => facts.method,
                    NameVariable::Host => facts.host,
                    NameVariable::Uri => facts.path,
                    NameVariable::LocationPath => facts.route,
                    NameVariable::Namespace => facts.namespace,
                    NameVariable::IngressName => facts.ingress,
                    NameVariable::ServiceName => facts.service,
                },
            };
            text.push_str(cut_text(part, MOST_OCTETS - text.len()));
        }
        text.shrink_to_fit();
        text
    }

    /// The name without a configured one, as the semantic conventions have it: of few different values.
    pub fn fill_default(method: &str, route: &str) -> String {
        let parts = if route.is_empty() { [method, "", ""] } else { [method, " ", route] };
        cut_text(&parts.concat(), MOST_OCTETS).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_variables_of_ingress_nginx() {
        let facts = SpanNameFacts {
            method: "GET",
            host: "a.test",
            path: "/cart/1",
            route: "/cart",
            namespace: "shop",
            ingress: "web",
            service: "carts",
        };
        for (text, filled) in [
            ("checkout", Some("checkout")),
            ("HTTP $request_method $service_name $uri", Some("HTTP GET carts /cart/1")),
            ("$host$location_path", Some("a.test/cart")),
            ("$namespace/$ingress_name!", Some("shop/web!")),
            ("", None),
            ("$", None),
            ("$http_authorization", None),
            ("$args", None),
            ("a $request_methods", None),
            ("a\nb", None),
            (&"a".repeat(257), None),
        ] {
            let name = SpanName::parse(text).ok().map(|name| name.fill(&facts));
            assert_eq!(name.as_deref(), filled, "{text}");
        }
        let long = SpanNameFacts { path: &"\u{e9}".repeat(1000), ..facts };
        assert_eq!(SpanName::parse("a$uri").unwrap().fill(&long).len(), 255);
        assert_eq!(SpanName::fill_default("GET", "/cart"), "GET /cart");
        assert_eq!(SpanName::fill_default("GET", ""), "GET");
    }

    /// Whoever writes the annotation has the path 64 times, and a client the longest one.
    #[test]
    fn a_name_takes_no_more_memory_than_it_is_long() {
        let path = "/a".repeat(512);
        let facts = SpanNameFacts {
            method: &path,
            host: &path,
            path: &path,
            route: &path,
            namespace: "shop",
            ingress: "web",
            service: "carts",
        };
        let many = SpanName::parse(&"$uri".repeat(64)).unwrap().fill(&facts);
        for name in [many, SpanName::fill_default("GET", &path)] {
            assert_eq!(name.len(), MOST_OCTETS);
            assert!(name.capacity() <= MOST_OCTETS, "{} octets", name.capacity());
        }
    }
}
