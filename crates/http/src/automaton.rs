//! Regular expressions of tenants as deterministic automata.
//!
//! Invariant: a search takes a few nanoseconds for each octet, whatever the expression. So an expression whose automaton
//! is too large is refused. An engine that simulates the expression is linear, too, but by a factor of its size:
//! thousands, for `.*a[ab]{1000}`.

use std::sync::Arc;

use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};

/// Limits on the compiled size of one expression: of its automaton, and of what is needed to build that. Ordinary
/// expressions need 2 to 24 KiB.
const MOST_OCTETS: usize = 128 << 10;
const MOST_OCTETS_TO_BUILD: usize = 1 << 20;

/// Says whether an expression matches, and not where. Classes are ASCII.
#[derive(Clone)]
pub(crate) struct Automaton {
    dfa: Arc<dense::DFA<Vec<u32>>>,
    anchored: Anchored,
}

impl Automaton {
    /// For an expression that must match from the beginning, regardless of case.
    pub(crate) fn of_beginning(text: &str) -> Result<Self, regex::Error> {
        Self::new(text, StartKind::Anchored, Anchored::Yes, true)
    }

    /// For an expression that may match anywhere.
    pub fn anywhere(text: &str) -> Result<Self, regex::Error> {
        Self::new(text, StartKind::Unanchored, Anchored::No, false)
    }

    fn new(
        text: &str,
        kind: StartKind,
        anchored: Anchored,
        ignores_case: bool,
    ) -> Result<Self, regex::Error> {
        let syntax =
            syntax::Config::new().case_insensitive(ignores_case).unicode(false).utf8(false);
        let parsed = regex_automata::util::syntax::parse_with(text, &syntax);
        parsed.map_err(|error| regex::Error::Syntax(error.to_string()))?;
        let limits = dense::Config::new()
            .start_kind(kind)
            .dfa_size_limit(Some(MOST_OCTETS))
            .determinize_size_limit(Some(MOST_OCTETS_TO_BUILD));
        let nfa = thompson::Config::new()
            .nfa_size_limit(Some(MOST_OCTETS))
            .which_captures(WhichCaptures::None);
        let dfa = dense::Builder::new()
            .configure(limits)
            .thompson(nfa)
            .syntax(syntax)
            .build(text)
            // Its syntax is valid.
            .map_err(|_| regex::Error::CompiledTooBig(MOST_OCTETS))?;
        Ok(Self { dfa: Arc::new(dfa), anchored })
    }

    pub fn matches(&self, octets: &[u8]) -> bool {
        let input = Input::new(octets).anchored(self.anchored).earliest(true);
        // Errors are for automata that stop at certain octets, or lack the kind of search: not these.
        self.dfa.try_search_fwd(&input).is_ok_and(|end| end.is_some())
    }

    pub fn octets(&self) -> usize {
        self.dfa.memory_usage()
    }
}
