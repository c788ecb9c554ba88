//! Directives that restrict access.

/// Directives of nginx that deny access to some clients.
const RESTRICTING: [&str; 12] = [
    "deny",
    "auth_basic",
    "auth_request",
    "auth_jwt",
    "satisfy",
    "limit_except",
    "secure_link",
    "secure_link_md5",
    "ssl_verify_client",
    "ssl_client_certificate",
    "valid_referers",
    "internal",
];

pub(super) fn is_restriction(name: &str, word: Option<&str>) -> bool {
    let code = || word.and_then(|word| word.parse::<u16>().ok());
    is_always_restriction(name) || (name == "return" && code().is_some_and(|code| code >= 400))
}

/// Whatever follows the name.
fn is_always_restriction(name: &str) -> bool {
    RESTRICTING.contains(&name) || name.starts_with("access_by_lua")
}

/// The word with which a directive that restricts access may begin behind the words of this one: before it a `;` is missing.
pub(super) fn find_swallowed_restriction<'d>(name: &str, words: &'d [String]) -> Option<&'d str> {
    // A name or a number, and any text.
    let own = if ["add_header", "proxy_set_header", "return"].contains(&name) { 2 } else { 0 };
    let mut words = words.iter().skip(own).map(String::as_str);
    words.find(|word| is_always_restriction(word) || *word == "return")
}
