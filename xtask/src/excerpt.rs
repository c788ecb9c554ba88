//! What a terminal shows of the log of a failed stage: the output of the failed tests, which many
//! others may follow, and the end.

/// The most lines of failed tests' output, and of the end if no test failed.
const MOST: usize = 300;

/// Lines of the end if there are failed tests: cargo's list of their programs.
const END: usize = 10;

/// The lines to show of a log.
pub fn excerpt(log: &str) -> Vec<&str> {
    let lines: Vec<&str> = log.lines().collect();
    let failures = failures(&lines);
    if failures.is_empty() {
        return lines[lines.len().saturating_sub(MOST)..].to_vec();
    }
    let shown = failures.len().min(MOST);
    let end = &lines[lines.len().saturating_sub(END)..];
    [&failures[..shown], &["..."], end].concat()
}

/// The parts of a log in which programs name their failed tests and what these printed.
fn failures<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut program = "";
    let mut within = false;
    let mut found = Vec::new();
    for line in lines {
        if line.trim_start().starts_with("Running ") || line.starts_with("vm: runs ") {
            program = line.trim_start();
            within = false;
        } else if *line == "failures:" && !within {
            within = true;
            found.push(program);
        }
        if within {
            found.push(line);
        }
        within &= !line.starts_with("test result: ");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = "\
     Running tests/first.rs (target/debug/deps/first-1)
test one ... ok
test result: ok. 1 passed; 0 failed
     Running tests/second.rs (target/debug/deps/second-1)
test two ... FAILED
test three ... ok

failures:

---- two stdout ----
the kernel refused

failures:
    two

test result: FAILED. 1 passed; 1 failed
     Running tests/third.rs (target/debug/deps/third-1)
";

    #[test]
    fn failed_tests_are_shown_however_much_follows_them() {
        let more = "test more ... ok\n".repeat(1000);
        let log = format!("{FAILED}{more}error: 1 target failed:\n    `-p tests --test second`\n");
        let shown = excerpt(&log);
        let expected = [
            "Running tests/second.rs (target/debug/deps/second-1)",
            "failures:",
            "",
            "---- two stdout ----",
            "the kernel refused",
            "",
            "failures:",
            "    two",
            "",
            "test result: FAILED. 1 passed; 1 failed",
            "...",
        ];
        assert_eq!(shown[..expected.len()], expected);
        assert_eq!(shown.last(), Some(&"    `-p tests --test second`"));
        assert_eq!(shown.len(), expected.len() + END);
    }

    #[test]
    fn of_a_log_without_failed_tests_the_end_is_shown() {
        let log = format!("first\n{}error: could not compile", "warning\n".repeat(MOST));
        let shown = excerpt(&log);
        assert_eq!((shown.len(), shown[0]), (MOST, "warning"));
        assert_eq!(shown.last(), Some(&"error: could not compile"));
        assert!(excerpt("").is_empty());
    }
}
