//! The elections on all interfaces, their inputs, and the reports about them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use lb_announce::{
    AddressView, AdoptedAddress, CandidateRank, ElectionTiming, LinkAddress, LinkEffect,
    LinkElection, LinkInput, LinkView, NodeSigns, ParticipantIdentity, SealKeys, Time,
};
use lb_network::AnnouncingLink;
use lb_process::notices::Notices;
use lb_status::Condition;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::beat::{Beat, BeatWatch};
use super::hook::HeldAddresses;
use super::perform::{Performer, read_deadline_clock};
use super::post::Post;
use super::sockets::Sockets;
use super::wanted::Wanted;
use super::{Links, any_readable};

/// Between two reports to `millrace announcements` and metrics, while something changes.
const REPORT: Duration = Duration::from_millis(500);

/// Between two reports to `millrace announcements` and metrics, while only counts change.
const REPORT_COUNTS: Duration = Duration::from_secs(5);

/// How long until opening the sockets of an interface is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The most datagrams that are read before anything else is done, of all sockets together; and how
/// many may be read of each socket in any case.
const MOST_AT_ONCE: usize = 1_024;
const OF_EACH: usize = 32;

/// An interface.
pub(crate) struct OnLink {
    facts: AnnouncingLink,
    link: LinkElection,
    sockets: Option<Sockets>,
    /// Not all that arrived since the last timer could be read or kept.
    behind: bool,
    retry: Time,
}

/// Only if no other node can.
fn without_preference(
    mut ranks: BTreeMap<IpAddr, CandidateRank>,
) -> BTreeMap<IpAddr, CandidateRank> {
    ranks.values_mut().for_each(|rank| *rank = (*rank).min(CandidateRank::LastResort));
    ranks
}

pub struct AnnouncerState {
    node_name: String,
    timing: ElectionTiming,
    keys: SealKeys,
    performer: Performer,
    /// The interfaces with addresses to announce.
    links: Links,
    /// All interfaces that could announce.
    facts: Vec<AnnouncingLink>,
    wanted: Option<Arc<Wanted>>,
    notices: Arc<dyn Notices>,
    condition: Arc<Condition>,
    main: Handle,
    report_at: Option<Time>,
    /// Until when all is read that arrived, except on links that are behind.
    passed_at: Time,
    /// Conflicts that were reported as Events.
    in_use: BTreeSet<(IpAddr, LinkAddress)>,
    leaving: Option<oneshot::Sender<()>>,
    beat: BeatWatch,
    /// The agent's loop does not run: other nodes should serve the addresses.
    is_stuck: bool,
    held: HeldAddresses,
}

impl AnnouncerState {
    pub fn new(
        node_name: String,
        timing: ElectionTiming,
        performer: Performer,
        notices: Arc<dyn Notices>,
        condition: Arc<Condition>,
        main: Handle,
    ) -> Self {
        Self {
            node_name,
            timing,
            keys: SealKeys::default(),
            performer,
            links: Links::new(),
            facts: Vec::new(),
            wanted: None,
            notices,
            condition,
            main,
            report_at: Some(Time::ZERO),
            passed_at: Time::ZERO,
            in_use: BTreeSet::new(),
            leaving: None,
            beat: BeatWatch::new(Beat::default()),
            is_stuck: false,
            held: HeldAddresses::default(),
        }
    }

    /// Follows whether the agent's loop runs.
    pub(crate) fn with_beat(self, beat: BeatWatch) -> Self {
        Self { beat, ..self }
    }

    /// Notes there which addresses this node announces.
    pub(crate) fn with_held(self, held: HeldAddresses) -> Self {
        Self { held, ..self }
    }

    fn follow_beat(&mut self) {
        let is_stuck = self.beat.is_stuck(read_deadline_clock());
        if std::mem::replace(&mut self.is_stuck, is_stuck) == is_stuck {
            return;
        }
        if is_stuck {
            tracing::error!("the agent's loop does not run; other nodes should announce addresses");
        } else {
            tracing::info!("the agent's loop runs again; announcing addresses as before");
        }
        self.distribute_wanted();
    }

    /// What this node wants on an interface now.
    fn wanted_on(&self, facts: &AnnouncingLink) -> BTreeMap<IpAddr, CandidateRank> {
        let wanted = self.wanted.as_ref();
        let ranks = wanted.map(|wanted| wanted.on(facts, &self.facts)).unwrap_or_default();
        if self.is_stuck { without_preference(ranks) } else { ranks }
    }

    pub(crate) fn set_keys(&mut self, keys: SealKeys) {
        self.keys = keys.clone();
        self.on_all(|_| LinkInput::Keys(keys.clone()));
    }

    pub(crate) fn set_links(&mut self, facts: &[AnnouncingLink]) {
        self.facts = facts.to_vec();
        self.remove_missing();
        self.reconcile();
        let interfaces: Vec<AnnouncingLink> = self.facts.clone();
        for facts in interfaces {
            let Some(on) = self.links.get_mut(&facts.index) else { continue };
            if on.facts == facts {
                continue;
            }
            let (old_mac, running) = (on.facts.mac, facts.running);
            // The addresses that sockets need may have come or gone.
            if on.facts.prefixes != facts.prefixes || on.facts.name != facts.name {
                on.sockets = open_sockets(&facts);
            }
            on.facts = facts.clone();
            tracing::info!(
                interface = facts.name,
                running,
                mac_changed = old_mac != facts.mac,
                "announcing interface changed"
            );
            let usable = usable(on);
            self.give(facts.index, LinkInput::Interface { usable, link_address: facts.mac });
        }
        self.distribute_wanted();
    }

    fn remove_missing(&mut self) {
        let present: BTreeSet<u32> = self.facts.iter().map(|facts| facts.index).collect();
        let gone: Vec<u32> =
            self.links.keys().filter(|index| !present.contains(index)).copied().collect();
        for index in gone {
            self.links.remove(&index);
        }
        // Also the interfaces on which an earlier agent announced addresses.
        let entries = self.performer.kernel().entries().unwrap_or_default();
        for entry in entries.iter().filter(|entry| !present.contains(&entry.device)) {
            let withdrawn = self.performer.withdraw(entry.device, entry.address);
            self.held.note_withdrawn(entry.device, entry.address);
            report_failure(withdrawn, "announcement on a removed interface not withdrawn");
        }
    }

    pub(crate) fn set_wanted(&mut self, wanted: Option<Arc<Wanted>>) {
        self.wanted = wanted;
        self.reconcile();
        self.distribute_wanted();
    }

    /// Starts an election on each interface on which there is something to announce.
    fn reconcile(&mut self) {
        let entries = self.performer.kernel().entries().unwrap_or_default();
        for facts in self.facts.clone() {
            let held: Vec<AdoptedAddress> = entries
                .iter()
                .filter(|entry| entry.device == facts.index && entry.remaining.is_some())
                .map(|entry| AdoptedAddress { address: entry.address, epoch: entry.epoch })
                .collect();
            let wanted = self.wanted_on(&facts);
            let has_any = !held.is_empty() || !wanted.is_empty();
            if !has_any || self.links.contains_key(&facts.index) {
                continue;
            }
            for adopted in &held {
                self.held.note_announced(facts.index, &facts.name, adopted.address);
            }
            report_failure(self.performer.adopt(facts.index), "multicast groups not joined");
            let identity = ParticipantIdentity {
                node: self.node_name.clone(),
                interface: facts.name.clone(),
                incarnation: random(),
            };
            let now = read_deadline_clock();
            let link = LinkElection::new(identity, self.timing, self.keys.clone(), &held, now);
            let sockets = open_sockets(&facts);
            tracing::info!(
                interface = facts.name,
                adopted = held.len(),
                authenticated = self.keys.authenticate(),
                "announcing on interface"
            );
            let retry = now + RETRY;
            let on = OnLink { facts: facts.clone(), link, sockets, behind: false, retry };
            let usable = usable(&on);
            self.links.insert(facts.index, on);
            self.give(facts.index, LinkInput::Interface { usable, link_address: facts.mac });
        }
    }

    fn distribute_wanted(&mut self) {
        if self.wanted.is_none() {
            return;
        }
        for index in self.indexes() {
            let on = self.wanted_on(&self.links[&index].facts);
            self.give(index, LinkInput::Wanted(on));
        }
        self.report_at = Some(read_deadline_clock());
    }

    pub fn leave(&mut self, left: oneshot::Sender<()>) {
        self.leaving = Some(left);
        self.on_all(|_| LinkInput::Leave);
        self.finish_leaving();
    }

    fn finish_leaving(&mut self) {
        let holds = |on: &OnLink| on.link.holds_any();
        if self.leaving.is_some()
            && !self.links.values().any(holds)
            && let Some(left) = self.leaving.take()
        {
            let _ = left.send(());
        }
    }

    pub async fn readable(&self) {
        any_readable(self.links.values().filter_map(|on| on.sockets.as_ref())).await;
    }

    fn receive(&mut self, now: Time) {
        let sockets = self.links.values().filter_map(|on| on.sockets.as_ref()).map(Sockets::count);
        let most = (MOST_AT_ONCE / sockets.sum::<usize>().max(1)).max(OF_EACH);
        for index in self.indexes() {
            let Some(on) = self.links.get_mut(&index) else { continue };
            let Some(sockets) = &mut on.sockets else { continue };
            let mut received = Vec::new();
            on.behind |= !sockets.receive(most, |octets| received.push(octets.to_vec()));
            for octets in received {
                self.give_at(index, LinkInput::Received(&octets), now);
            }
        }
    }

    /// When [`Self::pass_time`] has work.
    pub fn due(&self) -> Time {
        let timers = self.links.values().map(|on| on.link.next_timer());
        let retries = self.links.values().filter(|on| on.sockets.is_none()).map(|on| on.retry);
        let due = timers.chain(retries).chain(self.report_at).chain([self.performer.due()]);
        due.min().unwrap_or(Time::MAX)
    }

    /// Reads a bounded part of what has arrived, and does what is due.
    pub(crate) fn pass_time(&mut self) {
        self.follow_beat();
        // Taken first: what arrives later says nothing about the time before.
        let now = read_deadline_clock();
        self.passed_at = now;
        self.receive(now);
        for (device, address, by) in self.performer.claims(now) {
            self.give_at(device, LinkInput::Claim { address, by }, now);
        }
        for index in self.indexes() {
            let Some(on) = self.links.get_mut(&index) else { continue };
            if on.link.next_timer() <= now {
                let is_behind = std::mem::take(&mut on.behind);
                self.give_at(
                    index,
                    if is_behind { LinkInput::Backlog } else { LinkInput::Timer },
                    now,
                );
            }
        }
        let own = self.links.iter().map(|(index, on)| (*index, on.facts.mac)).collect();
        report_failure(self.performer.report_groups(&own, now), "multicast groups not reported");
        self.open_missing(now);
        if self.report_at.is_some_and(|at| now >= at) {
            self.report_at = Some(now + REPORT_COUNTS);
            self.condition.set_announcements(self.views(now));
        }
        self.finish_leaving();
    }

    fn open_missing(&mut self, now: Time) {
        for index in self.indexes() {
            let Some(on) = self.links.get_mut(&index) else { continue };
            if on.sockets.is_none() && now >= on.retry {
                on.retry = now + RETRY;
                on.sockets = open_sockets(&on.facts);
                let (usable, link_address) = (usable(on), on.facts.mac);
                if usable {
                    self.give(index, LinkInput::Interface { usable, link_address });
                }
            }
        }
    }

    fn indexes(&self) -> Vec<u32> {
        self.links.keys().copied().collect()
    }

    fn on_all<'a>(&mut self, input: impl Fn(u32) -> LinkInput<'a>) {
        for index in self.indexes() {
            self.give(index, input(index));
        }
    }

    /// Gives an input to the election on an interface, and does what it decides.
    fn give(&mut self, index: u32, input: LinkInput<'_>) {
        self.give_at(index, input, read_deadline_clock());
    }

    fn give_at(&mut self, index: u32, input: LinkInput<'_>, now: Time) {
        let Some(on) = self.links.get_mut(&index) else { return };
        let mut failed = Vec::new();
        for effect in on.link.handle(input, now) {
            let is_send = matches!(effect, LinkEffect::Send(_));
            let done = match effect {
                LinkEffect::Send(octets) => {
                    if let Some(sockets) = &on.sockets {
                        sockets.send(&octets);
                    }
                    Ok(())
                }
                LinkEffect::Announce { address, epoch, hold } => {
                    let done = self.performer.announce(index, address, epoch, hold);
                    match &done {
                        Ok(()) => self.held.note_announced(index, &on.facts.name, address),
                        Err(_) => failed.push(address),
                    }
                    done
                }
                LinkEffect::Withdraw(address) => {
                    self.held.note_withdrawn(index, address);
                    self.performer.withdraw(index, address)
                }
                LinkEffect::StillHeld(address) => {
                    self.held.repeat(index, address);
                    Ok(())
                }
                LinkEffect::Watch(address) => self.performer.watch(index, address),
                LinkEffect::Unwatch(address) => self.performer.stop_watching(index, address),
                LinkEffect::Transmit(frame) => self.performer.transmit(&on.facts, frame),
                LinkEffect::Report(news) => {
                    let post = Post {
                        node_name: &self.node_name,
                        interface: &on.facts.name,
                        wanted: self.wanted.as_deref(),
                        notices: &self.notices,
                        main: &self.main,
                    };
                    post.post(&news, &mut self.in_use);
                    Ok(())
                }
            };
            if !is_send {
                let soon = now + REPORT;
                self.report_at = Some(self.report_at.map_or(soon, |at| at.min(soon)));
            }
            if let Err(error) = done {
                let (error, interface) = (format!("{error:#}"), &on.facts.name);
                tracing::warn!(error, interface, "announcement failed");
            }
        }
        for address in failed {
            self.give_at(index, LinkInput::Failed(address), now);
        }
    }

    /// What the heartbeats on all links say of other nodes.
    pub(crate) fn node_signs(&self) -> NodeSigns {
        let mut signs = NodeSigns::default();
        for on in self.links.values() {
            let mut of_link = on.link.node_signs(self.passed_at);
            if on.behind {
                // What has not been read may be of a silent node.
                of_link.unheard.clear();
            }
            signs.merge(of_link);
        }
        signs
    }

    /// The state of the elections as commands and metrics show it, with the names of Services.
    fn views(&self, now: Time) -> Vec<LinkView> {
        let view = |on: &OnLink| {
            let mut view = on.link.link_view(now);
            for address in &mut view.addresses {
                self.complete(address);
            }
            view
        };
        self.links.values().map(view).collect()
    }

    fn complete(&self, view: &mut AddressView) {
        let wanted = self.wanted.as_ref().and_then(|wanted| wanted.addresses.get(&view.address));
        let Some(wanted) = wanted else { return };
        view.services = wanted.services.keys().map(ToString::to_string).collect();
        if let (Some(_), Some(why)) = (&view.why_not_here, wanted.why_not) {
            view.why_not_here = Some(why.to_owned());
        }
    }
}

fn usable(on: &OnLink) -> bool {
    on.facts.running && on.sockets.is_some()
}

fn open_sockets(facts: &AnnouncingLink) -> Option<Sockets> {
    match Sockets::open(facts) {
        Ok(sockets) => Some(sockets),
        Err(error) => {
            let (error, interface) = (format!("{error:#}"), &facts.name);
            tracing::warn!(error, interface, "heartbeat sockets not opened; retrying");
            None
        }
    }
}

fn random() -> u64 {
    // Without randomness, the time is different at every start, too.
    getrandom::u64().unwrap_or_else(|_| read_deadline_clock().as_nanos() as u64)
}

fn report_failure(done: anyhow::Result<()>, message: &'static str) {
    if let Err(error) = done {
        tracing::warn!(error = format!("{error:#}"), "{message}");
    }
}
