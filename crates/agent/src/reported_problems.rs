//! Problems that have been reported: each once, and again if it was fixed in between.

use std::collections::{BTreeMap, BTreeSet};

use lb_rules::model::{Problem, ServiceName};

#[derive(Debug, Default)]
pub(crate) struct ReportedProblems(BTreeMap<ServiceName, BTreeSet<Problem>>);

impl ReportedProblems {
    /// Replaces the problems of a Service. Returns the new ones, and whether all earlier ones are
    /// fixed and none is left.
    pub fn replace_problems(
        &mut self,
        service: &ServiceName,
        problems: Vec<Problem>,
    ) -> (Vec<Problem>, bool) {
        let now: BTreeSet<Problem> = problems.into_iter().collect();
        let before = self.0.remove(service).unwrap_or_default();
        let new = now.difference(&before).cloned().collect();
        let is_fixed = now.is_empty() && !before.is_empty();
        if !now.is_empty() {
            self.0.insert(service.clone(), now);
        }
        (new, is_fixed)
    }

    /// The current problems of a Service.
    pub fn problems_of(&self, service: &ServiceName) -> impl Iterator<Item = &Problem> {
        self.0.get(service).into_iter().flatten()
    }

    /// The number of Services with problems.
    pub fn services_with_problems(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_new_once_and_again_after_it_was_fixed() {
        let web = ServiceName::new("default", "web");
        let problem = |message: &str| Problem {
            object: "Service default/web".to_owned(),
            field: String::new(),
            message: message.to_owned(),
        };
        let mut reported = ReportedProblems::default();
        let mut set = |problems: &[&str]| {
            let (new, is_fixed) = reported
                .replace_problems(&web, problems.iter().map(|message| problem(message)).collect());
            let new: Vec<String> = new.into_iter().map(|problem| problem.message).collect();
            (new.join(" "), is_fixed, reported.services_with_problems())
        };
        assert_eq!(set(&["a"]), ("a".to_owned(), false, 1));
        assert_eq!(set(&["a", "b"]), ("b".to_owned(), false, 1));
        assert_eq!(set(&["b"]), (String::new(), false, 1));
        assert_eq!(set(&[]), (String::new(), true, 0));
        assert_eq!(set(&[]), (String::new(), false, 0));
        assert_eq!(set(&["a"]), ("a".to_owned(), false, 1));
    }
}
