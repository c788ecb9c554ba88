//! Hosts beyond those of the rules, and TLS passthrough.

use lb_http::HostPattern;

use super::endpoints::proxy_protocol;
use super::values::{parse_boolean, parse_list};
use super::{Annotation, Draft};

/// Each has a copy of all paths.
const MOST_ALIASES: usize = 64;

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "server-alias",
        &["server-alias"],
        "hosts",
        server_alias,
        "Hosts that get the same rules as the Ingress's first host",
    )
    .differs("an alias is a host like others: the oldest Ingress decides about it; no regular expressions"),
    Annotation::set(
        "tls-passthrough",
        &["ssl-passthrough"],
        "`true`, `false`",
        |draft, text| { draft.passthrough = parse_boolean(text)?; Ok(()) },
        "Forwards TLS connections for the Ingress's hosts to the Service of path `/` without terminating them, if the \
         setting `allow-tls-passthrough` is true. Sources and limits apply to connections; with passwords, `auth-url` or client \
         certificates it is refused",
    )
    .restricting(),
    Annotation::set(
        "tls-passthrough-proxy-protocol",
        &[],
        "`v1`, `v2`",
        |draft, text| { draft.passthrough_protocol = Some(proxy_protocol(text)?); Ok(()) },
        "Connections of `tls-passthrough` to endpoints begin with the PROXY protocol, which has the client's address",
    )
    .restricting(),
];

fn server_alias(draft: &mut Draft, text: &str) -> Result<(), String> {
    let one = |item: &str| match HostPattern::parse(item) {
        Ok(HostPattern::Any) | Err(_) => Err(format!("has {item:?}, which is no host")),
        Ok(host) => Ok(host),
    };
    let items = parse_list(text)?;
    if items.len() > MOST_ALIASES {
        return Err(format!("has {} hosts; at most {MOST_ALIASES} are possible", items.len()));
    }
    draft.aliases = items.into_iter().map(one).collect::<Result<_, _>>()?;
    Ok(())
}
