//! Label selectors of the API.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

pub type Labels = BTreeMap<String, String>;

/// All requirements must be met; without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    label: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    /// An operator of a newer API, or a mistyped one: nothing is selected.
    Unknown,
}

impl Selector {
    /// Selects nothing.
    pub fn nothing() -> Self {
        Self(vec![Requirement { label: String::new(), operator: Operator::Unknown }])
    }

    /// With what can't be read in it, which then selects nothing.
    pub fn read(selector: &LabelSelector) -> (Self, Option<String>) {
        let labels = selector.match_labels.iter().flatten();
        let mut requirements: Vec<Requirement> = labels
            .map(|(label, value)| Requirement {
                label: label.clone(),
                operator: Operator::In(BTreeSet::from([value.clone()])),
            })
            .collect();
        let mut problem = None;
        for expression in selector.match_expressions.iter().flatten() {
            let values: BTreeSet<String> = expression.values.iter().flatten().cloned().collect();
            let operator = match expression.operator.as_str() {
                "In" => Operator::In(values),
                "NotIn" => Operator::NotIn(values),
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    problem = Some(format!(
                        "the operator {other:?} of label {:?} is not one of In, NotIn, Exists, DoesNotExist: \
                         nothing is selected",
                        expression.key
                    ));
                    Operator::Unknown
                }
            };
            requirements.push(Requirement { label: expression.key.clone(), operator });
        }
        (Self(requirements), problem)
    }

    /// The labels that it asks for.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|requirement| &*requirement.label)
    }

    pub fn selects(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| {
            let value = labels.get(&requirement.label);
            match &requirement.operator {
                Operator::In(values) => value.is_some_and(|value| values.contains(value)),
                Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
                Operator::Unknown => false,
            }
        })
    }
}

/// Whether one of them selects the labels; true if there are none.
pub fn any_selects(selectors: &[Selector], labels: &Labels) -> bool {
    selectors.is_empty() || selectors.iter().any(|selector| selector.selects(labels))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selects(selector: Value, labels: &[(&str, &str)]) -> bool {
        let selector = serde_json::from_value(selector).unwrap();
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Selector::read(&selector).0.selects(&labels.collect())
    }

    #[test]
    fn every_operator_means_what_it_means_in_kubernetes() {
        let one = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]});
        for (selector, with_b, with_c, without) in [
            (json!({}), true, true, true),
            (json!({"matchLabels": {"a": "b"}}), true, false, false),
            (one("In", &["b", "d"]), true, false, false),
            (one("NotIn", &["b"]), false, true, true),
            (one("Exists", &[]), true, true, false),
            (one("DoesNotExist", &[]), false, false, true),
            (one("Gt", &["1"]), false, false, false),
        ] {
            let found = [&[("a", "b")][..], &[("a", "c")], &[]];
            let found = found.map(|labels| selects(selector.clone(), labels));
            assert_eq!(found, [with_b, with_c, without], "{selector}");
        }
        let both = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]});
        assert!(!selects(both.clone(), &[("a", "b")]));
        assert!(selects(both, &[("a", "b"), ("c", "")]));
    }
}
