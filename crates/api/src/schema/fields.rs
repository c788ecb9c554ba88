//! Parses `fields.txt`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

#[derive(Debug, Default)]
pub struct SchemaMessage {
    /// Server-side apply treats the message as a single value.
    pub atomic: bool,
    pub fields: BTreeMap<&'static str, SchemaField>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SchemaField {
    pub number: u32,
    /// If set, this is field `embedded` of the embedded message in field `number`.
    pub embedded: Option<u32>,
    /// In Go the field is a pointer: a missing value differs from the zero value.
    pub pointer: bool,
    /// Server-side apply treats the field as a single value.
    pub atomic: bool,
    pub list: Option<ListType>,
    /// The strategy of strategic merge patches, such as `merge`. `None`: replace.
    pub patch_strategy: Option<&'static str>,
    pub patch_merge_key: Option<&'static str>,
}

/// How server-side apply merges a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    /// Items are identified by these fields.
    Map(Vec<&'static str>),
}

/// The message of a definition such as `io.k8s.api.core.v1.ServicePort`.
pub fn find_message(definition: &str) -> Option<&'static SchemaMessage> {
    all_messages().get(definition)
}

pub(crate) fn all_messages() -> &'static BTreeMap<&'static str, SchemaMessage> {
    static MESSAGES: LazyLock<BTreeMap<&'static str, SchemaMessage>> =
        LazyLock::new(|| parse_messages(include_str!("fields.txt")));
    &MESSAGES
}

fn parse_messages(text: &'static str) -> BTreeMap<&'static str, SchemaMessage> {
    let mut messages: BTreeMap<&str, SchemaMessage> = BTreeMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut words = line.split_whitespace();
        // No line is blank. Tests check the file.
        let first = words.next().unwrap_or_default();
        if line.starts_with(' ') {
            let number = words.next().unwrap_or_default();
            if let Some(message) = messages.get_mut(current) {
                message.fields.insert(first, parse_field(number, words));
            }
        } else {
            current = first;
            let atomic = words.next() == Some("atomic");
            messages.insert(first, SchemaMessage { atomic, fields: BTreeMap::new() });
        }
    }
    messages
}

fn parse_field(number: &str, words: impl Iterator<Item = &'static str>) -> SchemaField {
    let (number, embedded) = match number.split_once('.') {
        Some((number, embedded)) => (number, embedded.parse().ok()),
        None => (number, None),
    };
    let mut field = SchemaField {
        number: number.parse().unwrap_or_default(),
        embedded,
        ..SchemaField::default()
    };
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
