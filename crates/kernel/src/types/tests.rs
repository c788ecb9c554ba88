use proptest::prelude::*;

use super::*;

const INTEGER: u32 = 1;
const POINTER: u32 = 2;

/// Builds BTF as the kernel exports it.
#[derive(Default)]
struct Written {
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl Written {
    fn new() -> Self {
        // Offset 0 is the empty string: no name.
        Self { types: Vec::new(), strings: vec![0] }
    }

    fn text(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len();
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        at as u32
    }

    fn add(&mut self, kind: u32, count: u32, name: &str, rest: &[u32]) {
        let name = self.text(name);
        let words = [&[name, kind << 24 | count, 0], rest].concat();
        self.types.extend(words.into_iter().flat_map(u32::to_ne_bytes));
    }

    /// Members are name, type and offset.
    fn structure(&mut self, kind: u32, name: &str, members: &[(&str, u32, u32)]) {
        let rest: Vec<u32> =
            members.iter().flat_map(|&(name, of, offset)| [self.text(name), of, offset]).collect();
        self.add(kind, members.len() as u32, name, &rest);
    }

    fn file(&self) -> Vec<u8> {
        let [types, strings] = [&self.types, &self.strings].map(|part| part.len() as u32);
        let header = [24, 0, types, types, strings];
        let start = MAGIC.to_ne_bytes().into_iter().chain([1, 0]);
        let words = header.into_iter().flat_map(u32::to_ne_bytes);
        start.chain(words).chain(self.types.clone()).chain(self.strings.clone()).collect()
    }
}

/// A small `sk_buff`: the member is a bit field in an anonymous structure, which is in an anonymous
/// union.
fn kernel() -> Written {
    const WITH_BIT_FIELDS: u32 = 1 << 7;
    let mut written = Written::new();
    written.add(INTEGER, 0, "unsigned char", &[8]); // 1
    written.add(POINTER, 0, "", &[]); // 2
    written.structure(
        STRUCT | WITH_BIT_FIELDS,
        "",
        &[("other", 1, 5 << 24), ("sum", 1, 2 << 24 | 5)],
    ); // 3
    written.structure(UNION, "", &[("words", 2, 0), ("", 3, 64)]); // 4
    written.structure(STRUCT, "buffer_of_others", &[("sum", 1, 8)]); // 5
    written.structure(STRUCT, "buffer", &[("next", 2, 0), ("", 4, 128), ("tail", 1, 512)]); // 6
    written.add(13, 2, "", &[0, 2, 0, 1]); // 7: a function's type
    written.add(6, 1, "states", &[0, 7]); // 8
    written.add(FUNCTION, 0, "cast", &[]); // 9
    written
}

#[test]
fn functions_and_members_are_found() {
    let file = kernel().file();
    let types = Types::parse(&file).expect("valid BTF");
    assert_eq!(types.function("cast"), Some(9));
    assert_eq!(types.bit_of_member("buffer", "next"), Some(0));
    assert_eq!(types.bit_of_member("buffer", "tail"), Some(512));
    assert_eq!(types.bit_of_member("buffer", "sum"), Some(128 + 64 + 5));
    assert_eq!(types.bit_of_member("buffer_of_others", "sum"), Some(8));
}

#[test]
fn missing_entries_are_not_found() {
    let file = kernel().file();
    let types = Types::parse(&file).expect("valid BTF");
    assert_eq!(types.function("cas"), None);
    assert_eq!(types.function("buffer"), None);
    assert_eq!(types.bit_of_member("buffer", "summed"), None);
    assert_eq!(types.bit_of_member("cast", "sum"), None);
}

#[test]
fn a_structure_within_itself_ends_the_search() {
    let mut written = Written::new();
    written.structure(STRUCT, "buffer", &[("", 1, 0), ("sum", 1, 8)]);
    let file = written.file();
    let types = Types::parse(&file).expect("valid BTF");
    assert_eq!(types.bit_of_member("buffer", "none"), None);
    assert_eq!(types.bit_of_member("buffer", "sum"), Some(8));
}

#[test]
fn other_files_and_kinds_are_refused() {
    let mut unknown = kernel();
    unknown.add(31, 0, "of the future", &[]);
    assert!(Types::parse(&unknown.file()).is_none());
    assert!(Types::parse(b"").is_none());
    let mut foreign = kernel().file();
    foreign[..2].reverse();
    assert!(Types::parse(&foreign).is_none());
}

proptest! {
    #[test]
    fn corrupt_types_do_not_panic(at: prop::sample::Index, octet: u8, length: prop::sample::Index) {
        let mut file = kernel().file();
        let at = at.index(file.len());
        file[at] = octet;
        file.truncate(length.index(file.len() + 1));
        if let Some(types) = Types::parse(&file) {
            let _ = (types.function("cast"), types.bit_of_member("buffer", "sum"));
        }
    }
}
