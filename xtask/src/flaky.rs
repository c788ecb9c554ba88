//! Finds what makes a test depend on what else the machine does.

use anyhow::{Result, ensure};

use crate::documents::{files_in, has_extension, read_document, relative_path};
use crate::process::repository_root;

/// Fails if a test takes a port from the kernel and closes it again.
pub fn check_ports() -> Result<()> {
    let mut found = Vec::new();
    for file in files_in(repository_root())? {
        // Benchmarks run alone.
        let is_test = file.components().all(|part| part.as_os_str() != "examples");
        if has_extension(&file, "rs") && is_test {
            let file_name = relative_path(&file).display().to_string();
            let lines = closed_ports(&read_document(&file)?);
            found.extend(lines.into_iter().map(|line| format!("{file_name}:{line}")));
        }
    }
    ensure!(
        found.is_empty(),
        "a port that is closed again may be another process's before it is used. For a server that a test starts, use \
         free_port() of crates/status/tests/ports; for nobody's address, port 9:\n{}",
        found.join("\n")
    );
    Ok(())
}

/// The lines of expressions that bind a socket and keep only its address.
fn closed_ports(source: &str) -> Vec<usize> {
    let binds = source.match_indices("Listener::bind(");
    let is_closed = |(at, _): &(usize, &str)| {
        let rest = &source[*at..];
        let end = rest.find([';', '{', '}']).unwrap_or(rest.len());
        rest[..end].contains(".local_addr()")
    };
    binds.filter(is_closed).map(|(at, _)| source[..at].matches('\n').count() + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_kept_is_not_found() {
        let kept = "let a = TcpListener::bind(any).unwrap();\nlet port = a.local_addr().unwrap();";
        assert_eq!(closed_ports(kept), [0; 0]);
        // In two parts: this file is checked, too.
        let closed =
            ["{\n    TcpListener", "::bind(any)\n        .unwrap().local_addr().unwrap()\n}"];
        assert_eq!(closed_ports(&closed.concat()), [2]);
    }
}
