//! What `fields.txt` says.

use std::collections::BTreeMap;
use std::sync::LazyLock;

#[derive(Debug, Default)]
pub struct Message {
    /// Server-side apply takes it as one.
    pub atomic: bool,
    pub fields: BTreeMap<&'static str, Field>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Field {
    pub number: u32,
    /// The field is this one of the message that is field `number`.
    pub embedded: Option<u32>,
    /// Nothing and the zero value differ.
    pub pointer: bool,
    /// Server-side apply takes it as one.
    pub atomic: bool,
    pub list: Option<ListType>,
    /// How a strategic merge patch merges it: `merge`; none: it replaces it.
    pub patch_strategy: Option<&'static str>,
    pub patch_merge_key: Option<&'static str>,
}

/// How server-side apply merges a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    /// By these fields of the items.
    Map(Vec<&'static str>),
}

/// By the name of a definition, like `io.k8s.api.core.v1.ServicePort`.
pub fn message(definition: &str) -> Option<&'static Message> {
    static MESSAGES: LazyLock<BTreeMap<&'static str, Message>> =
        LazyLock::new(|| parse(include_str!("fields.txt")));
    MESSAGES.get(definition)
}

fn parse(text: &'static str) -> BTreeMap<&'static str, Message> {
    let mut messages: BTreeMap<&str, Message> = BTreeMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut words = line.split_whitespace();
        // Lines are never blank, and the file is checked by the tests.
        let first = words.next().unwrap_or_default();
        if line.starts_with(' ') {
            let number = words.next().unwrap_or_default();
            if let Some(message) = messages.get_mut(current) {
                message.fields.insert(first, parse_field(number, words));
            }
        } else {
            current = first;
            let atomic = words.next() == Some("atomic");
            messages.insert(first, Message { atomic, fields: BTreeMap::new() });
        }
    }
    messages
}

fn parse_field(number: &str, words: impl Iterator<Item = &'static str>) -> Field {
    let (number, embedded) = match number.split_once('.') {
        Some((number, embedded)) => (number, embedded.parse().ok()),
        None => (number, None),
    };
    let mut field =
        Field { number: number.parse().unwrap_or_default(), embedded, ..Field::default() };
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("pointer", _) => field.pointer = true,
            ("atomic", _) => field.atomic = true,
            ("list", "atomic") => field.list = Some(ListType::Atomic),
            ("list", "set") => field.list = Some(ListType::Set),
            ("list", _) => field.list = Some(ListType::Map(Vec::new())),
            ("keys", keys) => field.list = Some(ListType::Map(keys.split(',').collect())),
            ("patch", strategy) => field.patch_strategy = Some(strategy),
            ("merge", key) => field.patch_merge_key = Some(key),
            _ => {}
        }
    }
    field
}
