//! How nginx reads the path of a request, before it looks for a location.

/// Percent-encodings are decoded, also those of `/` and `.`; then dot segments are resolved, and slashes that follow
/// each other are merged. `None`: nginx replies with 400.
pub fn normalize_target(target: &str) -> Option<Vec<u8>> {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let decoded = decode(path)?;
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut ends_with_slash = true;
    for segment in decoded.strip_prefix(b"/")?.split(|octet| *octet == b'/') {
        ends_with_slash = true;
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()?),
            _ => {
                segments.push(segment);
                ends_with_slash = false;
            }
        }
    }
    let mut read = b"/".to_vec();
    read.extend(segments.join(&b'/'));
    if ends_with_slash && !segments.is_empty() {
        read.push(b'/');
    }
    Some(read)
}

fn decode(path: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut octets = path.bytes();
    while let Some(octet) = octets.next() {
        let octet = match octet {
            b'%' => {
                let digits = [octets.next()?, octets.next()?];
                let text = str::from_utf8(&digits).ok()?;
                // `from_str_radix` accepts a sign.
                let number = u8::from_str_radix(text, 16).ok();
                number.filter(|_| digits.iter().all(u8::is_ascii_hexdigit))?
            }
            octet => octet,
        };
        if octet == 0 {
            return None;
        }
        decoded.push(octet);
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_and_merged() {
        let cases = [
            ("/", "/"),
            ("/a?b=/../c", "/a"),
            ("/a#b", "/a"),
            ("//a///b/", "/a/b/"),
            ("/a%2Fb%2f%2Fc", "/a/b/c"),
            ("/a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/a/%2e%2E/b", "/b"),
            ("/a%2F..%2Fb", "/b"),
            ("/a//../b", "/b"),
            ("/a/..", "/"),
            ("/%3Fa%23%25", "/?a#%"),
            ("/..a/...", "/..a/..."),
        ];
        for (target, path) in cases {
            let read = normalize_target(target).map(|path| String::from_utf8(path).unwrap());
            assert_eq!(read.as_deref(), Some(path), "{target}");
        }
        for target in ["", "a", "/..", "/a/../..", "/%", "/%4", "/%+1", "/%zz", "/%00", "/%2e%2e/"]
        {
            assert_eq!(normalize_target(target), None, "{target}");
        }
    }
}
