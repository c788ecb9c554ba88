//! Connections to endpoints: TLS, and the PROXY protocol.

use lb_proxy::config::ProxyProtocol;

use super::access::secret_name;
use super::values::{parse_boolean, parse_word};
use super::{Annotation, Draft};

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "upstream-tls-secret",
        &["proxy-ssl-secret"],
        "name of a Secret",
        |draft, text| { draft.endpoints.secret = Some(secret_name(text)?); Ok(()) },
        "Secret with authorities for the endpoints' certificates (`ca.crt`, `ca.crl`), and with the certificate that they \
         get (`tls.crt`, `tls.key`)",
    )
    .restricting()
    .differs("Secrets of other namespaces need the setting `allow-cross-namespace-secrets`"),
    Annotation::set(
        "upstream-tls-verify",
        &["proxy-ssl-verify"],
        "`on`, `off`",
        |draft, text| {
            let known = [("on", true), ("off", false), ("true", true), ("false", false)];
            draft.endpoints.verify = parse_word(text, &known)?;
Ok(())
        },
        "Whether the endpoints' certificates are verified",
    )
    .restricting(),
    Annotation::set(
        "upstream-tls-name",
        &["proxy-ssl-name"],
        "host",
        server_name,
        "Name in the endpoints' certificates",
    )
    .restricting(),
    Annotation::set(
        "upstream-tls-send-name",
        &["proxy-ssl-server-name"],
        "`on`, `off`",
        |draft, text| match parse_word(text, &[("on", true), ("off", false)]) {
            Ok(on) => { draft.endpoints.send_name = on; Ok(()) },
            Err(_) => { draft.endpoints.send_name = parse_boolean(text)?; Ok(()) },
        },
        "Whether the name is sent as SNI",
    )
    .differs("the name is sent whenever it is known"),
    Annotation::set(
        "upstream-proxy-protocol",
        &[],
        "`v1`, `v2`",
        |draft, text| { draft.endpoint_proxy_protocol = Some(proxy_protocol(text)?); Ok(()) },
        "Connections to endpoints begin with the PROXY protocol, which has the client's address; each carries one request",
    )
    .restricting(),
];

pub fn proxy_protocol(text: &str) -> Result<ProxyProtocol, String> {
    parse_word(text, &[("v1", ProxyProtocol::V1), ("v2", ProxyProtocol::V2)])
}

fn server_name(draft: &mut Draft, text: &str) -> Result<(), String> {
    let name = lb_http::host::normalize_host(text.trim()).map_err(|why| why.to_string())?;
    draft.endpoints.name = Some((&*name).into());
    Ok(())
}
