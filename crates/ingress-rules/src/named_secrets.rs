//! Which Secrets are watched by name. Each takes a connection to the API server, so they are limited in number.
//!
//! Invariants:
//! - Those that restrict access come before certificates: without its users, an Ingress admits no one.
//! - Each namespace has a part of its own, which others cannot take; what remains is for the oldest Ingresses.

use std::collections::{BTreeMap, BTreeSet};

use super::resolved::Age;
use lb_rules::model::{Kind, ObjectRef, ServiceName};

pub const MOST_NAMED: usize = 256;
/// As many Secrets of each namespace come before any others of the same kind of use.
const SHARE_OF_NAMESPACE: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedSecrets {
    pub watched: BTreeSet<ObjectRef>,
    /// Beyond the limit: to Ingresses it is as if they did not exist.
    pub left_out: BTreeSet<ObjectRef>,
}

/// What a Secret is needed for. In their order: the first are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SecretUse {
    pub is_certificate: bool,
    /// An Ingress refers to it; otherwise the proxy's own settings.
    pub is_of_ingress: bool,
    /// Of the oldest Ingress that refers to it.
    pub age: Age,
}

impl SecretUse {
    pub const SETTINGS: Self = Self { is_certificate: false, is_of_ingress: false, age: None };
}

pub(crate) fn select_secrets(
    wishes: impl IntoIterator<Item = (ServiceName, SecretUse)>,
) -> NamedSecrets {
    let mut first: BTreeMap<ServiceName, SecretUse> = BTreeMap::new();
    for (secret, wish) in wishes {
        let known = first.entry(secret).or_insert(wish);
        *known = wish.min(*known);
    }
    let mut sorted: Vec<(SecretUse, ServiceName)> =
        first.into_iter().map(|(secret, wish)| (wish, secret)).collect();
    sorted.sort();
    let mut of_namespace: BTreeMap<String, usize> = BTreeMap::new();
    let mut ranked: Vec<_> = sorted
        .into_iter()
        .map(|(wish, secret)| {
            let count = of_namespace.entry(secret.namespace.clone()).or_default();
            *count += 1;
            ((wish.is_certificate, *count > SHARE_OF_NAMESPACE), wish, secret)
        })
        .collect();
    ranked.sort();
    let reference = |(_, _, secret): &(_, _, ServiceName)| {
        ObjectRef::new(Kind::Secret, Some(&secret.namespace), Some(&secret.name))
    };
    let (watched, left_out) = ranked.split_at(ranked.len().min(MOST_NAMED));
    NamedSecrets {
        watched: watched.iter().map(reference).collect(),
        left_out: left_out.iter().map(reference).collect(),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    /// Created at this second.
    fn wish(second: i64, is_certificate: bool) -> SecretUse {
        let age = Some(Timestamp::from_second(second).unwrap());
        SecretUse { is_certificate, is_of_ingress: true, age }
    }

    fn many(namespace: &str, count: usize, wish: SecretUse) -> Vec<(ServiceName, SecretUse)> {
        (0..count).map(|n| (ServiceName::new(namespace, &format!("{n:04}")), wish)).collect()
    }

    fn count(selected: &BTreeSet<ObjectRef>, namespace: &str) -> usize {
        selected.iter().filter(|secret| secret.namespace == namespace).count()
    }

    #[test]
    fn certificates_take_no_place_of_what_restricts_access() {
        let mut wishes = many("aaa", 300, wish(1, true));
        wishes.extend(many("tools", 40, wish(9, false)));
        let selected = select_secrets(wishes);
        assert_eq!(count(&selected.watched, "tools"), 40);
        assert_eq!(count(&selected.watched, "aaa"), MOST_NAMED - 40);
        assert_eq!(count(&selected.left_out, "aaa"), 300 + 40 - MOST_NAMED);
    }

    #[test]
    fn a_namespace_leaves_room_for_others() {
        // The attacker's Ingresses are older, and its name comes first.
        let mut wishes = many("aaa", 1000, wish(1, false));
        wishes.extend(many("shop", 32, wish(9, false)));
        wishes.extend(many("tools", 1, wish(10, false)));
        let selected = select_secrets(wishes);
        assert_eq!(count(&selected.watched, "shop"), 32);
        assert_eq!(count(&selected.watched, "tools"), 1);
        assert_eq!(selected.watched.len(), MOST_NAMED);
        // Alone, it may have all.
        assert_eq!(select_secrets(many("aaa", 1000, wish(1, false))).watched.len(), MOST_NAMED);
    }

    #[test]
    fn beyond_their_parts_the_oldest_come_first() {
        let mut wishes = many("young", 300, wish(9, false));
        wishes.extend(many("old", 200, wish(1, false)));
        let selected = select_secrets(wishes);
        assert_eq!(count(&selected.watched, "old"), 200);
        assert_eq!(count(&selected.watched, "young"), MOST_NAMED - 200);
    }

    #[test]
    fn a_secret_counts_once_with_its_first_reason() {
        let secret = ServiceName::new("shop", "a");
        let wishes = [(secret.clone(), wish(1, true)), (secret, SecretUse::SETTINGS)];
        let mut wishes = Vec::from(wishes);
        wishes.extend(many("aaa", 300, wish(1, false)));
        assert_eq!(count(&select_secrets(wishes).watched, "shop"), 1);
    }
}
