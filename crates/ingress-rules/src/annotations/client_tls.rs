//! Certificates that clients present.

use super::Annotation;
use super::access::secret_name;
use super::draft::VerifyClient;
use super::values::{parse_boolean, parse_number, parse_word};

const VERIFY: [(&str, VerifyClient); 3] =
    [("on", VerifyClient::On), ("off", VerifyClient::Off), ("optional", VerifyClient::Optional)];

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "auth-tls-secret",
        &["auth-tls-secret"],
        "name of a Secret",
        |draft, text| { draft.clients.secret = Some(secret_name(text)?); Ok(()) },
        "Secret with authorities in its key `ca.crt`, and with lists of revoked certificates in `ca.crl`. Clients of the \
         Ingress's hosts need a certificate of theirs. Endpoints get `ssl-client-verify` (`SUCCESS` or `NONE`), \
         `ssl-client-subject-dn` and `ssl-client-issuer-dn`",
    )
    .restricting()
    .differs("Secrets of other namespaces need the setting `allow-cross-namespace-secrets`"),
    Annotation::set(
        "auth-tls-verify-client",
        &["auth-tls-verify-client"],
        "`on`, `off`, `optional`",
        |draft, text| { draft.clients.verify = Some(parse_word(text, &VERIFY)?); Ok(()) },
        "Whether clients need a certificate; `optional` admits clients without one, too",
    )
    .restricting()
    .differs("a certificate that can't be verified ends the handshake, instead of getting 400; no `optional_no_ca`"),
    Annotation::set(
        "auth-tls-verify-depth",
        &["auth-tls-verify-depth"],
        "number",
        |_, text| parse_number(text, 0, 100).map(|_: u32| ()),
        "Accepted without effect",
    )
    .restricting()
    .differs("chains are limited by the authorities' own path lengths"),
    Annotation::set(
        "auth-tls-pass-certificate",
        &["auth-tls-pass-certificate-to-upstream"],
        "`true`, `false`",
        |draft, text| { draft.clients.pass_to_endpoint = parse_boolean(text)?; Ok(()) },
        "Whether endpoints get the client's certificate in the header `ssl-client-cert`",
    ),
];
