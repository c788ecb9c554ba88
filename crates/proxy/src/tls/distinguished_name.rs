//! Names in certificates as text: RFC 2253 with the short names of OpenSSL, so that applications behind nginx know them.

use x509_parser::asn1_rs::Any;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Other attributes have their number instead of a name.
const SHORT_NAMES: [(&str, &str); 26] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.97", "organizationIdentifier"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("1.3.6.1.4.1.311.60.2.1.1", "jurisdictionL"),
    ("1.3.6.1.4.1.311.60.2.1.2", "jurisdictionST"),
    ("1.3.6.1.4.1.311.60.2.1.3", "jurisdictionC"),
];

/// The last attribute first: `CN=ann,OU=sales,O=Example\, Inc.`. The text is visible ASCII.
pub(super) fn format_distinguished_name(name: &X509Name<'_>) -> String {
    let sets = name.iter_rdn().map(|set| {
        let attributes = set.iter().map(attribute).collect::<Vec<_>>();
        attributes.into_iter().rev().collect::<Vec<_>>().join("+")
    });
    let sets: Vec<String> = sets.collect();
    sets.into_iter().rev().collect::<Vec<_>>().join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let number = attribute.attr_type().to_id_string();
    let known = SHORT_NAMES.iter().find(|(known, _)| *known == number);
    match (known, attribute.as_str()) {
        (Some((_, name)), Ok(value)) => format!("{name}={}", escaped(value)),
        (Some((_, name)), Err(_)) => format!("{name}={}", encoded(attribute.attr_value())),
        (None, _) => format!("{number}={}", encoded(attribute.attr_value())),
    }
}

fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let last = value.len().saturating_sub(1);
    for (at, octet) in value.bytes().enumerate() {
        let is_special = match octet {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => true,
            b' ' => at == 0 || at == last,
            b'#' => at == 0,
            _ => false,
        };
        match octet {
            0x20..0x7f if is_special => text.extend(['\\', octet.into()]),
            0x20..0x7f => text.push(octet.into()),
            _ => text.push_str(&format!("\\{octet:02X}")),
        }
    }
    text
}

/// A value that is no text: its encoding (DER).
fn encoded(value: &Any<'_>) -> String {
    let constructed = if value.header.is_constructed() { 0x20 } else { 0 };
    let mut der = vec![value.tag().0 as u8 & 0x1f | constructed];
    match value.data.len() {
        short @ ..0x80 => der.push(short as u8),
        long => {
            let octets = long.to_be_bytes();
            let octets = &octets[octets.iter().take_while(|octet| **octet == 0).count()..];
            der.push(0x80 | octets.len() as u8);
            der.extend_from_slice(octets);
        }
    }
    der.extend_from_slice(value.data);
    let digits = der.iter().map(|octet| format!("{octet:02X}"));
    format!("#{}", digits.collect::<String>())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
    use x509_parser::prelude::{FromDer, X509Certificate};

    use super::*;

    fn formatted(attributes: &[(DnType, &str)]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in attributes {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let (_, parsed) = X509Certificate::from_der(certificate.der()).unwrap();
        format_distinguished_name(parsed.subject())
    }

    /// As `openssl x509 -noout -subject -nameopt RFC2253` prints them.
    #[test]
    fn names_are_those_of_openssl() {
        use DnType::{CommonName, CountryName, OrganizationName, OrganizationalUnitName};
        assert_eq!(
            formatted(&[
                (CountryName, "DE"),
                (OrganizationName, "Example, Inc."),
                (OrganizationalUnitName, "sales"),
                (CommonName, "ann"),
            ]),
            "CN=ann,OU=sales,O=Example\\, Inc.,C=DE"
        );
        for (value, text) in [
            ("a+b=c;<d>\"e\\", "CN=a\\+b=c\\;\\<d\\>\\\"e\\\\"),
            (" a ", "CN=\\ a\\ "),
            (" ", "CN=\\ "),
            ("#a#", "CN=\\#a#"),
            ("\u{fc}\n", "CN=\\C3\\BC\\0A"),
        ] {
            assert_eq!(formatted(&[(CommonName, value)]), text);
        }
        let own = DnType::CustomDnType(vec![1, 2, 3, 4]);
        assert_eq!(formatted(&[(own, "a")]), "1.2.3.4=#0C0161");
        let mail = DnType::CustomDnType(vec![1, 2, 840, 113549, 1, 9, 1]);
        assert_eq!(formatted(&[(mail, "a@b.test")]), "emailAddress=a@b.test");
    }
}
