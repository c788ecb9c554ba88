//! Which netfilter chains, rules and tables belong to kube-proxy. Pure.
//!
//! Invariants:
//! - A chain or rule of other software is never removed: neither a user's, nor the kubelet's, nor
//!   that of a container runtime.
//! - A chain is kept if a rule that stays refers to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use nix::libc::{NFPROTO_IPV4, NFPROTO_IPV6};

/// In nftables mode kube-proxy has a table of its own.
const OWN_TABLE: &str = "kube-proxy";

/// Chains of the iptables and IPVS modes. Some exist in the table `nat`, some in `filter`.
const CHAINS: [&str; 11] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
    "KUBE-LOAD-BALANCER",
    "KUBE-NODE-PORT",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];

/// Prefixes of chains for one service port or endpoint. A hash follows, of 16 digits in base 32.
const PREFIXES: [&str; 6] =
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"];
const HASH_LENGTH: usize = 16;

/// Chains of `nat` that kubelets before Kubernetes 1.28 create, too, and that other software uses.
const SHARED: [&str; 2] = [MARK_MASQ, POSTROUTING];
const MARK_MASQ: &str = "KUBE-MARK-MASQ";
const POSTROUTING: &str = "KUBE-POSTROUTING";
/// A chain that identifies such a kubelet.
const OLD_KUBELETS: &str = "KUBE-MARK-DROP";

/// Chains that no base chain jumps to, unless a user has written the rule.
fn is_inner(name: &str) -> bool {
    name == MARK_MASQ || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a table is kube-proxy's own, of its nftables mode.
pub(crate) fn is_kube_proxys_table(name: &str) -> bool {
    name == OWN_TABLE
}

/// Whether a chain of another table has a name of kube-proxy's.
pub(crate) fn is_kube_proxys(name: &str) -> bool {
    let is_hash = |text: &str| {
        text.len() == HASH_LENGTH && text.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'))
    };
    CHAINS.contains(&name)
        || PREFIXES.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(is_hash))
}

/// A table of one address family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NftablesTable {
    /// NFPROTO_IPV4 or NFPROTO_IPV6.
    pub family: u8,
    pub name: String,
}

impl Display for NftablesTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if i32::from(self.family) == NFPROTO_IPV6 { "ip6" } else { "ip" };
        write!(f, "{family} {}", self.name)
    }
}

impl NftablesTable {
    fn is_ip(&self) -> bool {
        [NFPROTO_IPV4, NFPROTO_IPV6].contains(&i32::from(self.family))
    }

    fn is_kube_proxys(&self) -> bool {
        self.is_ip() && is_kube_proxys_table(&self.name)
    }

    fn is_of_iptables(&self) -> bool {
        self.is_ip() && ["nat", "filter", "mangle"].contains(&self.name.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chain {
    pub table: NftablesTable,
    pub name: String,
    /// Called by the kernel itself, for example PREROUTING.
    pub is_base: bool,
}

impl Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// A rule that jumps to a chain of its table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Jump {
    pub table: NftablesTable,
    pub chain: String,
    pub handle: u64,
    pub target: String,
}

/// What is removed, and what is left although kube-proxy may have made it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    pub tables: BTreeSet<NftablesTable>,
    /// From base chains.
    pub jumps: BTreeSet<Jump>,
    pub chains: BTreeSet<Chain>,
    /// With the reason.
    pub kept: Vec<(Chain, String)>,
}

impl Leftovers {
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.chains.is_empty()
    }

    pub fn of(chains: &BTreeSet<Chain>, jumps: &BTreeSet<Jump>) -> Self {
        let tables = chains.iter().map(|chain| &chain.table).filter(|table| table.is_kube_proxys());
        let mut leftovers = Self { tables: tables.cloned().collect(), ..Self::default() };
        let of_iptables: BTreeSet<&NftablesTable> = chains
            .iter()
            .map(|chain| &chain.table)
            .filter(|table| table.is_of_iptables())
            .collect();
        for table in of_iptables {
            let chains: Vec<&Chain> = chains.iter().filter(|chain| chain.table == *table).collect();
            let jumps: Vec<&Jump> = jumps.iter().filter(|jump| jump.table == *table).collect();
            leftovers.add(&chains, &jumps);
        }
        leftovers
    }

    /// Adds the contents of one iptables table. There may be 100,000 chains, so each is checked
    /// once, and again if a chain that jumps to it is kept.
    fn add(&mut self, chains: &[&Chain], jumps: &[&Jump]) {
        let by_name: BTreeMap<&str, &Chain> =
            chains.iter().map(|&chain| (&*chain.name, chain)).collect();
        let (mut by_target, mut by_chain) = (Jumps::new(), Jumps::new());
        for &jump in jumps {
            by_target.entry(&jump.target).or_default().push(jump);
            by_chain.entry(&jump.chain).or_default().push(jump);
        }
        let is_entry = |jump: &Jump| {
            by_name.get(&*jump.chain).is_some_and(|chain| chain.is_base) && !is_inner(&jump.target)
        };
        let mut removed = self.candidates(&by_name);
        let mut queue: Vec<&str> = removed.iter().copied().collect();
        while let Some(name) = queue.pop() {
            let stays = |jump: &&&Jump| !removed.contains(&*jump.chain) && !is_entry(jump);
            let user = by_target.get(name).and_then(|jumps| jumps.iter().find(stays));
            // KUBE-POSTROUTING masquerades the packets that KUBE-MARK-MASQ marks.
            let marks = by_name.contains_key(MARK_MASQ) && !removed.contains(MARK_MASQ);
            let reason = match user {
                Some(jump) => format!("a rule in {} refers to it", jump.chain),
                None if name == POSTROUTING && marks => format!("{MARK_MASQ} stays"),
                None => continue,
            };
            if removed.remove(name) {
                self.kept.push((by_name[name].clone(), reason));
                let targets = by_chain.get(name).into_iter().flatten().map(|jump| &*jump.target);
                queue.extend(targets.chain((name == MARK_MASQ).then_some(POSTROUTING)));
            }
        }
        self.chains.extend(removed.iter().map(|name| by_name[name].clone()));
        let entries = jumps.iter().filter(|jump| is_entry(jump) && removed.contains(&*jump.target));
        self.jumps.extend(entries.map(|&jump| jump.clone()));
    }

    /// The chains whose names are kube-proxy's, unless the kubelet shares them.
    fn candidates<'a>(&mut self, chains: &BTreeMap<&'a str, &Chain>) -> BTreeSet<&'a str> {
        let old_kubelet = chains.contains_key(OLD_KUBELETS);
        let mut candidates = BTreeSet::new();
        for (&name, &chain) in chains.iter().filter(|(_, chain)| !chain.is_base) {
            let is_shared = chain.table.name == "nat" && SHARED.contains(&name);
            if is_shared && old_kubelet {
                self.kept.push((chain.clone(), "this kubelet uses it, too".to_owned()));
            } else if is_shared || is_kube_proxys(name) {
                candidates.insert(name);
            }
        }
        candidates
    }
}

/// Jumps, by the name of their chain or their target.
type Jumps<'a> = BTreeMap<&'a str, Vec<&'a Jump>>;

#[cfg(test)]
mod tests {
    use super::*;

    const SVC: &str = "KUBE-SVC-ERIFXISQEP7F7OF4";

    /// The table `ip nat` with these chains besides PREROUTING and POSTROUTING, and these jumps.
    fn nat(names: &[&str], jumps: &[(&str, &str)]) -> Leftovers {
        in_table("nat", names, jumps)
    }

    fn in_table(table: &str, names: &[&str], jumps: &[(&str, &str)]) -> Leftovers {
        let table = NftablesTable { family: NFPROTO_IPV4 as u8, name: table.to_owned() };
        let chain =
            |name: &str, is_base| Chain { table: table.clone(), name: name.into(), is_base };
        let base = ["PREROUTING", "POSTROUTING"].map(|name| chain(name, true));
        let chains = names.iter().map(|name| chain(name, false)).chain(base).collect();
        let jumps = (1..).zip(jumps).map(|(handle, (from, to))| Jump {
            table: table.clone(),
            chain: (*from).to_owned(),
            handle,
            target: (*to).to_owned(),
        });
        Leftovers::of(&chains, &jumps.collect())
    }

    fn names(leftovers: &Leftovers) -> Vec<&str> {
        leftovers.chains.iter().map(|chain| &*chain.name).collect()
    }

    fn kept(leftovers: &Leftovers) -> Vec<(&str, &str)> {
        leftovers.kept.iter().map(|(chain, why)| (&*chain.name, &**why)).collect()
    }

    #[test]
    fn chains_of_kube_proxy_and_the_jumps_to_them_are_removed() {
        let leftovers = nat(
            &["KUBE-SERVICES", SVC, MARK_MASQ, POSTROUTING, "DOCKER"],
            &[
                ("PREROUTING", "KUBE-SERVICES"),
                ("PREROUTING", "DOCKER"),
                ("POSTROUTING", POSTROUTING),
                ("KUBE-SERVICES", SVC),
                (SVC, MARK_MASQ),
            ],
        );
        assert_eq!(names(&leftovers), [MARK_MASQ, POSTROUTING, "KUBE-SERVICES", SVC]);
        let jumps: Vec<u64> = leftovers.jumps.iter().map(|jump| jump.handle).collect();
        assert_eq!(jumps, [3, 1], "by chain");
        assert_eq!(kept(&leftovers), []);
    }

    #[test]
    fn chains_of_others_are_not_removed() {
        let others = [
            "KUBE-KUBELET-CANARY",
            "KUBE-IPTABLES-HINT",
            "KUBE-FIREWALL",
            "KUBE-HOSTPORTS",
            "KUBE-ROUTER-INPUT",
            "KUBE-SVC-MINE",
            "KUBE-SVC-ERIFXISQEP7F7OF48",
            "KUBE-SVC-erifxisqep7f7of4",
            "MY-KUBE-SERVICES",
            "DOCKER",
        ];
        for table in ["nat", "filter", "mangle"] {
            assert!(in_table(table, &others, &[("PREROUTING", "KUBE-FIREWALL")]).is_empty());
        }
        // A table that a user has made.
        assert!(in_table("mine", &["KUBE-SERVICES"], &[]).is_empty());
    }

    #[test]
    fn what_a_user_or_a_container_runtime_refers_to_is_kept() {
        let leftovers = nat(
            &["KUBE-SERVICES", MARK_MASQ, POSTROUTING, "KUBE-HP-A"],
            &[("KUBE-HP-A", MARK_MASQ), ("POSTROUTING", POSTROUTING)],
        );
        assert_eq!(names(&leftovers), ["KUBE-SERVICES"]);
        let expected = [
            (MARK_MASQ, "a rule in KUBE-HP-A refers to it"),
            (POSTROUTING, "KUBE-MARK-MASQ stays"),
        ];
        assert_eq!(kept(&leftovers), expected);
        assert!(leftovers.jumps.is_empty());

        let leftovers = nat(
            &["KUBE-SERVICES", SVC, "MINE"],
            &[("MINE", "KUBE-SERVICES"), ("KUBE-SERVICES", SVC), ("PREROUTING", "KUBE-SERVICES")],
        );
        assert!(leftovers.is_empty(), "a chain that stays keeps what it needs: {leftovers:?}");

        let leftovers = nat(&["KUBE-SERVICES", SVC], &[("PREROUTING", SVC)]);
        assert_eq!(names(&leftovers), ["KUBE-SERVICES"], "kube-proxy writes no such rule");
    }

    #[test]
    fn what_an_old_kubelet_shares_is_kept() {
        let names_in_nat = ["KUBE-SERVICES", MARK_MASQ, POSTROUTING, OLD_KUBELETS];
        let leftovers = nat(&names_in_nat, &[("POSTROUTING", POSTROUTING)]);
        assert_eq!(names(&leftovers), ["KUBE-SERVICES"]);
        let kept: Vec<&str> = kept(&leftovers).into_iter().map(|(name, _)| name).collect();
        assert_eq!(kept, [MARK_MASQ, POSTROUTING]);
    }

    #[test]
    fn a_table_of_nftables_is_removed_whole() {
        let leftovers = in_table("kube-proxy", &["services", "nat-prerouting"], &[]);
        let tables: Vec<String> = leftovers.tables.iter().map(ToString::to_string).collect();
        assert_eq!(tables, ["ip kube-proxy"]);
        assert!(leftovers.chains.is_empty());
    }
}
