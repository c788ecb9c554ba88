//! A set of addresses as maximal runs of consecutive ones: the first address that is not in it is found in
//! logarithmic time, however many are.

use std::collections::BTreeMap;

/// The last address of each run, by its first one. Between two runs is at least one address.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressRuns(BTreeMap<u128, u128>);

impl AddressRuns {
    /// The run that contains an address.
    fn run_of(&self, number: u128) -> Option<(u128, u128)> {
        let (&first, &last) = self.0.range(..=number).next_back()?;
        (number <= last).then_some((first, last))
    }

    pub fn insert(&mut self, number: u128) {
        if self.run_of(number).is_some() {
            return;
        }
        let before = number.checked_sub(1).and_then(|before| self.run_of(before));
        let after = number.checked_add(1).and_then(|after| self.0.remove(&after));
        let first = before.map_or(number, |(first, _)| first);
        self.0.insert(first, after.unwrap_or(number));
    }

    pub fn remove(&mut self, number: u128) {
        let Some((first, last)) = self.run_of(number) else { return };
        self.0.remove(&first);
        if first < number {
            self.0.insert(first, number - 1);
        }
        if number < last {
            self.0.insert(number + 1, last);
        }
    }

    /// The first address from here on that is not in the set.
    pub(crate) fn first_absent(&self, from: u128) -> Option<u128> {
        match self.run_of(from) {
            Some((_, last)) => last.checked_add(1),
            None => Some(from),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_with_maximal_runs(steps in prop::collection::vec((any::<bool>(), 0u128..40), 0..200)) {
            let (mut runs, mut set) = (AddressRuns::default(), BTreeSet::new());
            for (is_insertion, number) in steps {
                if is_insertion {
                    runs.insert(number);
                    set.insert(number);
                } else {
                    runs.remove(number);
                    set.remove(&number);
                }
                for from in 0..41 {
                    let expected = (from..).find(|number| !set.contains(number));
                    prop_assert_eq!(runs.first_absent(from), expected);
                }
                let starts = set.iter().filter(|number| **number == 0 || !set.contains(&(*number - 1)));
                prop_assert_eq!(runs.0.len(), starts.count());
            }
        }
    }

    #[test]
    fn the_last_address_of_all_ends_the_search() {
        let mut runs = AddressRuns::default();
        runs.insert(u128::MAX);
        assert_eq!(runs.first_absent(u128::MAX), None);
        runs.remove(u128::MAX);
        assert_eq!(runs.first_absent(u128::MAX), Some(u128::MAX));
    }
}
