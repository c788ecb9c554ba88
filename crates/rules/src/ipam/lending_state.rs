//! What is known of nodes and their ports, for the Services of pools that stand for nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::SearchStart;
use super::lending_nodes::EndpointNodes;
use crate::model::{Node, ProtocolPort};

#[derive(Debug, Default)]
pub(crate) struct Lending {
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) endpoints: EndpointNodes,
    pub(super) holders: BTreeMap<ProtocolPort, BTreeSet<SearchStart>>,
    /// Services of pools that stand for nodes.
    pub(crate) borrowers: BTreeSet<SearchStart>,
}
