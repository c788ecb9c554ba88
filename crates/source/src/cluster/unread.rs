//! Kinds of MetalLB that a cluster has and Millrace neither reads nor writes: their objects have no effect.
//!
//! The API says which kinds there are, and whether there is an object of each. No permission for other kinds is needed:
//! of one that this account may not list, it is unknown whether there are objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use anyhow::{Result, anyhow, ensure};
use http::Request;
use kube::Client;
use lb_rules::model::Kind;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::announcement_statuses::StatusKind;
use super::items::MAX_ITEM;
use super::response;
use super::trouble::Trouble;

const GROUP: &str = "/apis/metallb.io";
/// MetalLB has six.
const MOST_KINDS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadKind {
    pub kind: String,
    /// Otherwise this account may not list them.
    pub has_objects: bool,
}

impl UnreadKind {
    /// Whether MetalLB itself writes the objects, for people and tools.
    pub fn is_report(&self) -> bool {
        ["Status", "State"].iter().any(|end| self.kind.ends_with(end))
    }
}

impl Display for UnreadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = &self.kind;
        let what = match (self.has_objects, self.is_report()) {
            (false, _) => "may exist; this account may not list them",
            (true, true) => "are reports of MetalLB, which Millrace does not update",
            (true, false) => "are not read: what they configure has no effect",
        };
        write!(f, "objects of kind {kind} of metallb.io {what}")
    }
}

#[derive(Deserialize)]
struct Group {
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
}

#[derive(Deserialize)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    kind: String,
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct List {
    items: Vec<IgnoredAny>,
}

/// Those with objects in the namespace, or of which that is unknown. None without MetalLB's kinds.
pub async fn list_unread_metallb_kinds(
    client: &Client,
    namespace: &str,
) -> Result<BTreeSet<UnreadKind>> {
    let read = Kind::ALL
        .into_iter()
        .filter(|kind| kind.is_of_metallb())
        .filter_map(|kind| Some(kind.path().rsplit_once('/')?.1.to_owned()));
    let written = StatusKind::ALL.into_iter().map(|kind| kind.resource().to_owned());
    let used: BTreeSet<String> = read.chain(written).collect();
    let Some(group) = get::<Group>(client, GROUP).await.map_err(|e| failed(GROUP, &e))? else {
        return Ok(BTreeSet::new());
    };
    let mut unread: BTreeMap<String, (String, Resource)> = BTreeMap::new();
    for GroupVersion { version } in group.versions.into_iter().take(MOST_KINDS) {
        let path = format!("{GROUP}/{version}");
        let all = get::<Resources>(client, &path).await.map_err(|error| failed(&path, &error))?;
        for resource in all.into_iter().flat_map(|all| all.resources) {
            let is_listed = resource.verbs.iter().any(|verb| verb == "list");
            if is_listed && !used.contains(&resource.name) {
                unread.insert(resource.name.clone(), (path.clone(), resource));
            }
        }
    }
    ensure!(unread.len() <= MOST_KINDS, "{GROUP}: more than {MOST_KINDS} kinds");
    let mut found = BTreeSet::new();
    for (path, Resource { name, kind, namespaced, .. }) in unread.into_values() {
        let path = match namespaced {
            true => format!("{path}/namespaces/{namespace}/{name}"),
            false => format!("{path}/{name}"),
        };
        match get::<List>(client, &format!("{path}?limit=1")).await {
            Ok(list) if list.as_ref().is_none_or(|list| list.items.is_empty()) => {}
            Ok(_) => drop(found.insert(UnreadKind { kind, has_objects: true })),
            Err(trouble) if trouble.is_of_permissions() => {
                found.insert(UnreadKind { kind, has_objects: false });
            }
            Err(trouble) => return Err(failed(&path, &trouble)),
        }
    }
    Ok(found)
}

/// Whether the cluster has a kind of MetalLB, by the name of its resource. Every account may ask.
pub(super) async fn has_metallb_resource(client: &Client, resource: &str) -> Result<bool, Trouble> {
    let resources = get::<Resources>(client, &format!("{GROUP}/v1beta1")).await?;
    let mut resources = resources.into_iter().flat_map(|all| all.resources);
    Ok(resources.any(|one| one.name == resource))
}

fn failed(path: &str, trouble: &Trouble) -> anyhow::Error {
    anyhow!("{path} can't be read: {}", trouble.describe())
}

/// `None`: there is nothing.
async fn get<T: DeserializeOwned>(client: &Client, path: &str) -> Result<Option<T>, Trouble> {
    let request = Request::get(path).body(Vec::new());
    let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
    let mut body = match response::send(client, request).await {
        Err(Trouble::Refused(status)) if status.code == 404 => return Ok(None),
        body => body?,
    };
    let mut text = Vec::new();
    while let Some(bytes) = response::next(&mut body).await? {
        if text.len() + bytes.len() > MAX_ITEM {
            return Err(Trouble::Failed(format!("larger than {} KiB", MAX_ITEM >> 10)));
        }
        text.extend_from_slice(&bytes);
    }
    let read = serde_json::from_slice(&text);
    read.map(Some).map_err(|error| Trouble::Failed(format!("not the JSON of an API: {error}")))
}
