//! Why a request takes its route, and not another one.

use super::{IngressTable, MatchedRule, WhyShadowed};
use crate::host::HostPattern;
use crate::path;

#[derive(Clone, Debug)]
pub struct Explanation<'t> {
    /// The host pattern that owns the request.
    pub owner: Option<&'t HostPattern>,
    /// Exactly what [`IngressTable::find`] returns.
    pub matched: Option<MatchedRule<'t>>,
    /// All other rules that match host and path, in the order in which they would be served.
    pub lost: Vec<Lost<'t>>,
}

#[derive(Clone, Debug)]
pub struct Lost<'t> {
    pub rule: MatchedRule<'t>,
    pub reason: MatchReason<'t>,
}

#[derive(Clone, Debug)]
pub enum MatchReason<'t> {
    /// A more specific host pattern owns the request.
    Host,
    /// Another path pattern of the host comes first: it is exact, or longer.
    Path,
    /// The rule is never served.
    Shadowed(&'t WhyShadowed),
}

impl IngressTable {
    /// The rule that [`IngressTable::find`] chooses, and those that lost.
    pub fn explain(&self, host: Option<&str>, path: &str) -> Explanation<'_> {
        let matched = self.find(host, path);
        let comparable = path::comparable_path(path, self.slashes);
        let mut lost = Vec::new();
        for (rank, rules) in self.candidates(host).enumerate() {
            let matching = rules.matching(&comparable).map(|rule| (rule, None));
            let served = if rank == 0 { usize::from(matched.is_some()) } else { 0 };
            let shadowed = rules
                .shadowed()
                .iter()
                .filter(|shadowed| shadowed.path.matches(path, self.slashes))
                .map(|shadowed| {
                    let rule = MatchedRule {
                        host: rules.host(),
                        path: &shadowed.path,
                        route: &shadowed.route,
                    };
                    (rule, Some(&shadowed.why))
                });
            lost.extend(matching.skip(served).chain(shadowed).map(|(rule, why)| {
                let reason = match why {
                    Some(why) => MatchReason::Shadowed(why),
                    None if rank == 0 => MatchReason::Path,
                    None => MatchReason::Host,
                };
                Lost { rule, reason }
            }));
        }
        Explanation { owner: self.candidates(host).next().map(|rules| rules.host()), matched, lost }
    }
}
