//! All configured endpoints fit, whatever was there before.

use super::*;

const ENDPOINTS: u32 = 16_384;

/// Replaces all Services, in any order, to go from one number of replicas to the next, with every
/// endpoint in use. These numbers need the most slots, and gaps of small tables are too small for
/// large ones. All endpoints must serve, and few tables may be smaller than fitting until the next
/// change.
#[test]
fn tables_of_any_size_fit_after_any_others() {
    let room = Room {
        service_ports: 2 * ENDPOINTS,
        backends: 2 * ENDPOINTS,
        pool_slots: ENDPOINTS * lb_common::layout::capacity::SLOTS_PER_BACKEND,
        ..Room::default()
    };
    let mut planner = Planner::with_room(room);
    let mut held: Vec<(ServicePortKey, Arc<ServicePort>)> = Vec::new();
    let (mut used, mut random) = (0, 1);
    for (turn, replicas) in [2, 15, 57, 3, 228].into_iter().enumerate() {
        let mut lacking = BTreeSet::new();
        for (key, mut port) in services((0..ENDPOINTS / replicas).map(|_| replicas)) {
            let key = ServicePortKey { port: turn.to_string(), ..key };
            let replicas = port.cluster.len();
            let mut wanted = BTreeMap::new();
            while used + replicas > ENDPOINTS as usize {
                random = lb_common::hash::mix(random);
                let gone = lb_common::hash::scale(random as u32, held.len() as u32);
                let (key, port) = held.swap_remove(gone as usize);
                used -= port.cluster.len();
                lacking.remove(&key);
                wanted.insert(key, None);
            }
            // Services of the previous turn have frontends with the same addresses.
            let of_this_turn = |f| lb_rules::model::Frontend { port: 1 + turn as u16, ..f };
            port.frontends = port.frontends.into_iter().map(of_this_turn).collect();
            let port = Arc::new(port);
            wanted.insert(key.clone(), Some(Arc::clone(&port)));
            held.push((key, port));
            used += replicas;
            settle(&mut planner, wanted, &mut lacking, &held);
        }
        let coarse = lacking.len();
        assert!(coarse * 50 <= held.len(), "{replicas} replicas: {coarse} of {}", held.len());
        for (key, port) in &held {
            let there = &planner.held[key];
            assert_eq!(there.service_port.cluster, port.cluster, "{key} serves all its endpoints");
            assert!(there.tables[0].region.size > 0, "{key} has a table");
        }
    }
}

/// Plans again while a plan makes room, as the agent does.
fn settle(
    planner: &mut Planner,
    service_ports: BTreeMap<ServicePortKey, Option<Arc<ServicePort>>>,
    lacking: &mut BTreeSet<ServicePortKey>,
    held: &[(ServicePortKey, Arc<ServicePort>)],
) {
    let mut change = Change { service_ports, ..Change::default() };
    for _ in 0..8 {
        if !lacking.is_empty() {
            for (key, port) in held.iter().filter(|(key, _)| lacking.contains(key)) {
                change.service_ports.insert(key.clone(), Some(Arc::clone(port)));
            }
        }
        let plan = planner.plan(std::mem::take(&mut change));
        *lacking = plan.lacking;
        if !plan.makes_room || lacking.is_empty() {
            break;
        }
    }
}
