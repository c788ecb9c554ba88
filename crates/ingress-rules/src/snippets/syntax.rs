//! Reads the syntax of nginx's configuration: directives, which are words that end with `;`, or with a block in braces.
//!
//! Invariant: what is read has the meaning that nginx gives it. Whatever could end the text early or late, such as an
//! open quote or brace, makes all of it unreadable, and so do Lua and names that no directive has.

use std::fmt;
use std::iter::Peekable;
use std::str::Chars;

/// The largest snippet, in octets.
const MOST_OCTETS: usize = 32 << 10;
const MOST_DIRECTIVES: usize = 256;
const MOST_WORDS: usize = 64;
/// Blocks in blocks.
const MOST_DEPTH: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// Where it begins.
    pub line: usize,
    pub name: String,
    /// Without quotes and escapes.
    pub words: Vec<String>,
    pub block: Option<Vec<Directive>>,
}

impl fmt::Display for Directive {
    /// The beginning, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for word in &self.words {
            write!(f, " {word}")?;
        }
        f.write_str(if self.block.is_some() { " {...}" } else { ";" })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    pub line: usize,
    pub why: &'static str,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// The directives of a snippet.
pub fn read_directives(text: &str) -> Result<Vec<Directive>, SyntaxError> {
    let fail = |why| Err(SyntaxError { line: 1, why });
    if text.len() > MOST_OCTETS {
        return fail("the snippet is too long");
    }
    let mut reader = Reader { rest: text.chars().peekable(), line: 1, count: 0 };
    if text.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\r' | '\n')) {
        return fail("the snippet has control characters");
    }
    reader.read_block(0)
}

struct Reader<'t> {
    rest: Peekable<Chars<'t>>,
    line: usize,
    /// Directives until here.
    count: usize,
}

/// What follows the words of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Semicolon,
    OpenBrace,
}

impl Reader<'_> {
    fn fail<T>(&self, why: &'static str) -> Result<T, SyntaxError> {
        Err(SyntaxError { line: self.line, why })
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        if next == Some('\n') {
            self.line += 1;
        }
        next
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    /// Directives until the brace that closes the block, or at depth 0 until the end.
    fn read_block(&mut self, depth: usize) -> Result<Vec<Directive>, SyntaxError> {
        let mut directives = Vec::new();
        loop {
            self.skip_blanks();
            match self.peek() {
                None if depth == 0 => return Ok(directives),
                None => return self.fail("a block has no end"),
                Some('}') if depth == 0 => return self.fail("a } closes no block"),
                Some('}') => {
                    self.next();
                    return Ok(directives);
                }
                Some(';' | '{') => return self.fail("a directive has no name"),
                Some(_) => directives.push(self.read_directive(depth)?),
            }
        }
    }

    fn read_directive(&mut self, depth: usize) -> Result<Directive, SyntaxError> {
        self.count += 1;
        if self.count > MOST_DIRECTIVES {
            return self.fail("the snippet has too many directives");
        }
        let line = self.line;
        let mut words = Vec::new();
        let end = loop {
            if words.len() > MOST_WORDS {
                return self.fail("a directive has too many words");
            }
            words.push(self.read_word()?);
            self.skip_blanks();
            match self.peek() {
                None => return self.fail("the last directive does not end with ;"),
                Some(';') => break End::Semicolon,
                Some('{') => break End::OpenBrace,
                Some('}') => return self.fail("a directive does not end with ;"),
                Some(_) => {}
            }
        };
        self.next();
        let name = words.remove(0);
        if name.contains([' ', '\t', '\r', '\n', ';', '{', '}', '#', '"', '\'', '\\']) {
            return self.fail("a directive's name has blanks, quotes or other signs");
        }
        let block = match end {
            End::Semicolon => None,
            End::OpenBrace if name.ends_with("_by_lua_block") => {
                return self.fail("Lua is never executed");
            }
            End::OpenBrace if depth == MOST_DEPTH => {
                return self.fail("blocks are nested too deep");
            }
            End::OpenBrace => Some(self.read_block(depth + 1)?),
        };
        Ok(Directive { line, name, words, block })
    }

    /// Skips blanks and comments, which begin only where a word could.
    fn skip_blanks(&mut self) {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\r' | '\n' => drop(self.next()),
                '#' => while self.next().is_some_and(|next| next != '\n') {},
                _ => return,
            }
        }
    }

    /// A word is quoted from its first character on, or not at all.
    fn read_word(&mut self) -> Result<String, SyntaxError> {
        match self.peek() {
            Some(quote @ ('"' | '\'')) => {
                self.next();
                self.read_quoted(quote)
            }
            _ => self.read_plain(),
        }
    }

    fn read_quoted(&mut self, quote: char) -> Result<String, SyntaxError> {
        let mut word = String::new();
        loop {
            match self.next() {
                None => return self.fail("a quote has no end"),
                Some('\\') => self.read_escape(&mut word)?,
                Some(next) if next == quote => break,
                Some(next) => word.push(next),
            }
        }
        match self.peek() {
            // A parenthesis is the end of a condition.
            None | Some(' ' | '\t' | '\r' | '\n' | ';' | '{' | ')') => Ok(word),
            Some(_) => self.fail("a quote is followed by something else than a blank, ; or {"),
        }
    }

    fn read_plain(&mut self) -> Result<String, SyntaxError> {
        let mut word = String::new();
        // As in `${host}`, whose brace begins no block.
        let mut is_variable = false;
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\r' | '\n' | ';' => break,
                '{' if !is_variable => break,
                _ => {}
            }
            self.next();
            is_variable = matches!(next, '$' | '{');
            match next {
                '\\' => self.read_escape(&mut word)?,
                next => word.push(next),
            }
        }
        Ok(word)
    }

    /// What a backslash stands for, together with the next character.
    fn read_escape(&mut self, word: &mut String) -> Result<(), SyntaxError> {
        match self.next() {
            None => return self.fail("a \\ is the last character"),
            Some(next @ ('"' | '\'' | '\\')) => word.push(next),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(next) => word.extend(['\\', next]),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(directives: &[Directive]) -> String {
        let one = |directive: &Directive| {
            let block = directive.block.as_ref().map(|block| format!("{{{}}}", shown(block)));
            format!("{}{:?}{}", directive.name, directive.words, block.unwrap_or_default())
        };
        directives.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn words_end_where_nginx_ends_them() {
        for (text, expected) in [
            ("", ""),
            ("# deny all;", ""),
            ("a b c;", "a[\"b\", \"c\"]"),
            ("a;b;", "a[] b[]"),
            ("a b#c;# d\ne;", "a[\"b#c\"] e[]"),
            ("a \"b; # c\" 'd {e}';", "a[\"b; # c\", \"d {e}\"]"),
            ("a b\"c d;", "a[\"b\\\"c\", \"d\"]"),
            (r#"a "b\"c" 'd\'e' f\;g;"#, r#"a["b\"c", "d'e", "f\\;g"]"#),
            (r"a b\\${c};", r#"a["b\\${c}"]"#),
            (r"a b\${c;}", r#"a["b\\$"]{c[]}"#),
            (r#"a "b\tc\d";"#, r#"a["b\tc\\d"]"#),
            ("a ${b}c;", "a[\"${b}c\"]"),
            ("a b$ {c;}", "a[\"b$\"]{c[]}"),
            ("a b}c;", "a[\"b}c\"]"),
            ("location /a{ deny all; }", "location[\"/a\"]{deny[\"all\"]}"),
            ("if ($a = \"\") { return 403; }", "if[\"($a\", \"=\", \"\", \")\"]{return[\"403\"]}"),
            ("a {b {c;}} d;", "a[]{b[]{c[]}} d[]"),
            ("a\n\n  b;\nc;", "a[\"b\"] c[]"),
        ] {
            let read = read_directives(text).map(|directives| shown(&directives));
            assert_eq!(read, Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_could_end_elsewhere_is_not_read() {
        let deep = "a {".repeat(6) + &"}".repeat(6);
        let many = "a;".repeat(257);
        let wide = format!("a {};", "b ".repeat(65));
        let long = format!("a {};", "b".repeat(40 << 10));
        for text in [
            "a",
            "a b",
            "}",
            "a; }",
            "} location / {",
            "a {",
            "a { b; ",
            "a { b }",
            ";",
            "a;;",
            "{ a; }",
            "a \"b;",
            "a 'b;",
            "a \"b\"c;",
            "a \"b\"};",
            "a b\\",
            "a \0;",
            "a \u{1b}[2J;",
            "access_by_lua_block { ngx.exit(403) }",
            "rewrite_by_lua_block{x}",
            &deep,
            &many,
            &wide,
            &long,
        ] {
            assert!(read_directives(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_error_names_its_line() {
        let error = read_directives("a;\n# b\nc 'd;\ne;\n").unwrap_err();
        assert_eq!(error.to_string(), "line 5: a quote has no end");
        let lines = read_directives("a;\n\nb\n c;d;").unwrap();
        assert_eq!(lines.iter().map(|directive| directive.line).collect::<Vec<_>>(), [1, 3, 4]);
    }

    fn quoted(word: &str) -> String {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    }

    fn written(directives: &[Directive]) -> String {
        let one = |directive: &Directive| {
            let words: Vec<String> = directive.words.iter().map(|word| quoted(word)).collect();
            let end = match &directive.block {
                None => ";".to_owned(),
                Some(block) => format!(" {{ # }} ;\n{}}}", written(block)),
            };
            format!("{} {}{end}\n", quoted(&directive.name), words.join("\t"))
        };
        directives.iter().map(one).collect()
    }

    fn directives() -> impl Strategy<Value = Vec<Directive>> {
        let words = || prop::collection::vec("[ -~\u{e9}]{0,8}", 0..4);
        let simple = ("[a-z_/~.0-9]{1,8}", words()).prop_map(|(name, words)| Directive {
            line: 0,
            name,
            words,
            block: None,
        });
        let one = simple.prop_recursive(3, 20, 4, move |inner| {
            let block = prop::collection::vec(inner, 0..4);
            ("[a-z_/~.0-9]{1,8}", words(), block).prop_map(|(name, words, block)| Directive {
                line: 0,
                name,
                words,
                block: Some(block),
            })
        });
        prop::collection::vec(one, 0..4)
    }

    fn without_lines(directives: Vec<Directive>) -> Vec<Directive> {
        let one = |directive: Directive| {
            let block = directive.block.map(without_lines);
            Directive { line: 0, block, ..directive }
        };
        directives.into_iter().map(one).collect()
    }

    proptest! {
        #[test]
        fn any_directives_that_are_written_are_read(directives in directives()) {
            let text = written(&directives);
            let read = read_directives(&text).map(without_lines);
            prop_assert_eq!(read, Ok(directives), "{}", text);
        }

        /// Whatever a tenant writes, words have no more than the text, and nothing panics.
        #[test]
        fn any_text_is_read_or_refused(text in r#"[ab${}; #'"\\\n\r\t()=/0-9]{0,60}|.{0,60}"#) {
            fn octets(directives: &[Directive]) -> usize {
                let one = |directive: &Directive| {
                    let words = directive.words.iter().map(String::len).sum::<usize>();
                    directive.name.len() + words + octets(directive.block.as_deref().unwrap_or(&[]))
                };
                directives.iter().map(one).sum()
            }
            if let Ok(directives) = read_directives(&text) {
                prop_assert!(octets(&directives) <= text.len());
            }
        }
    }
}
