//! The packet tables. A case is a function of a conversation and the addresses to use, so that each runs
//! in both families.

pub mod affinity;
pub mod assigned_addresses;
pub mod bfd;
pub mod change;
pub mod corrupt;
pub mod draining;
pub mod ends;
pub mod errors;
pub mod flows;
pub mod foreign;
pub mod fragments;
pub mod frontends;
pub mod full_buckets;
pub mod headers;
pub mod idle;
pub mod neighbours;
pub mod next_hop;
pub mod receivers;
pub mod refusals;
pub mod replies;
pub mod sctp;
pub mod sctp_of_processes;
pub mod selection;
pub mod shared_hops;
pub mod slot_history;
pub mod source_ranges;
pub mod translation;
pub mod tunnel_keys;
mod tunnels;
pub mod tunnels_in;
pub mod tunnels_out;
pub mod undeliverable;

pub use ends::{Ends, V4, V6};

use crate::packets::datapath::Conversation;
use crate::packets::{Packet, tcp};

/// Opens a connection to a Service with one backend. Returns a packet of the client, and the backend.
fn connect(c: &mut Conversation, at: &Ends) -> (Packet, String) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    establish(c, &request, &backend);
    (request, backend)
}

/// A client's connections from one port to two frontends of one backend, which sees the second one with an SNAT port.
struct TwoFrontends {
    backend: String,
    one: Packet,
    other: Packet,
    /// The source of the second connection's packets at the backend.
    snat: String,
}

impl TwoFrontends {
    /// Sends the SYN of each.
    fn open(c: &mut Conversation, at: &Ends) -> Self {
        c.set(&at.web(1).load_balancer(&at.load_balancer(443)));
        let backend = at.backends(1)[0].clone();
        let one = at.to_web(40000);
        let other = tcp(at.client(40000).as_str(), at.load_balancer(443).as_str());
        c.request_to(&backend, &one.syn());
        let snat = c.forward(&other.syn()).with_snat(&other.syn().to(backend.as_str()));
        Self { backend, one, other, snat }
    }
}

/// Opens a connection to the only backend: SYN, SYN-ACK, ACK.
fn establish(c: &mut Conversation, request: &Packet, backend: &str) {
    c.request_to(backend, &request.syn());
    c.reply_from(backend, &request.reversed().syn_ack());
    c.request_to(backend, &request.ack());
}

/// Makes a test of every case in both families: `$run(case, ends)`.
#[macro_export]
macro_rules! every_case {
    ($run:ident) => {
        $crate::every_case! { @all $run
            translation: [
                a_request_goes_to_a_backend_and_its_reply_comes_back,
                a_datagram_goes_to_a_backend_and_its_reply_comes_back,
                tags_of_networks_stay,
                headers_between_stay,
                a_datagram_without_a_checksum_keeps_none,
                a_wrong_checksum_stays_wrong,
                a_packet_with_padding_keeps_it,
            ]
            affinity: [
                a_client_stays_with_its_backend_whatever_it_dials,
                it_stays_while_others_come_and_go,
                affinity_is_switched_for_new_connections_at_once,
                affinity_ends_when_no_connection_was_opened_for_its_time,
                each_new_connection_prolongs_affinity,
                affinity_selects_only_backends_that_the_policy_allows,
                datagrams_stay_too,
            ]
            assigned_addresses: [
                an_echo_request_is_answered,
                a_port_that_no_service_has_is_refused,
                ports_of_services_are_served_as_before,
                what_gets_no_answer_is_dropped,
                nothing_is_sent_to_groups,
                addresses_that_others_assigned_are_left_alone,
                addresses_of_nodes_are_left_to_them,
                with_policy_local_other_nodes_are_silent,
                source_ranges_decide_who_is_answered,
                an_address_belongs_to_all_services_that_share_it,
                tc_answers_if_xdp_cannot,
                a_tunnel_brings_no_packet_to_another_port,
                with_tunnels_the_first_node_answers,
            ]
            source_ranges: [
                clients_outside_of_the_ranges_are_dropped,
                ranges_are_for_load_balancers_addresses_only,
                a_range_of_length_zero_is_everybody,
                ranges_are_their_services_own,
                pods_are_held_to_the_ranges_too,
            ]
            selection: [
                a_connection_stays_with_its_backend,
                connections_spread_over_all_backends,
                all_frontends_of_a_service_port_lead_to_its_backends,
                a_node_port_is_open_on_the_nodes_addresses_only,
                without_backends_connections_are_reset,
                policy_local_wants_a_local_backend,
                policy_local_drops_packets_while_only_other_nodes_serve,
                another_port_of_a_cluster_address_is_refused,
                another_port_of_an_external_address_passes,
                another_protocol_on_a_frontends_port_is_refused,
                a_pod_is_not_held_to_the_external_policy,
                backends_get_even_shares,
                backends_have_ports_of_their_own,
                the_internal_policy_keeps_pods_on_their_node,
            ]
            flows: [
                a_connection_lives_from_syn_to_fin,
                flows_are_found_wherever_new_ones_begin,
                a_reset_closes_a_connection,
                a_syn_on_a_closed_connection_starts_a_new_one,
                a_connection_past_the_service_is_not_taken_for_a_closed_one,
                a_closed_connection_does_not_take_the_replies_of_a_later_one,
                a_packet_in_the_middle_of_an_unknown_connection_follows_the_table,
                the_first_packet_of_the_backend_decides_about_a_picked_up_connection,
                a_reply_without_a_flow_passes,
                a_flow_moves_when_its_backend_goes,
                a_flow_moves_when_its_backend_leaves_its_service,
                an_index_given_to_another_backend_takes_no_flow_along,
                a_flow_survives_what_happens_to_other_backends,
                established_flows_are_not_evicted_by_a_flood,
                nascent_flows_make_room,
                one_port_of_a_client_reaches_two_services,
                packets_outside_the_window_do_not_end_a_connection,
                a_datagram_past_the_service_ends_its_flow,
                a_datagram_past_the_service_leaves_a_stream,
                only_an_ack_of_the_syn_ack_establishes_a_connection,
                a_half_closed_connection_keeps_its_identity,
                a_reset_out_of_the_window_closes_nothing,
            ]
            full_buckets: [
                a_flow_of_full_buckets_is_found,
                a_client_with_affinity_has_one_backend_without_entries_too,
                a_connection_without_an_entry_outlasts_its_affinity,
                fragments_and_errors_of_a_crowded_client_come_out_of_tunnels,
            ]
            change: [
                a_client_that_was_refused_is_served_at_once,
                a_changed_target_port_takes_datagrams_along,
                datagrams_follow_an_address_that_moves_to_another_service,
                a_rolling_update_under_policy_local_breaks_no_connection,
            ]
            corrupt: [
                undamaged_tables_serve,
                the_last_indexes_serve,
                a_frontend_without_a_kind_serves_nothing,
                there_is_no_pool_beyond_the_last,
                an_empty_pool_refuses,
                there_is_no_slot_beyond_the_last,
                a_slot_may_name_no_backend,
                a_backend_serves_its_own_protocol_only,
            ]
            draining: [
                a_backend_that_ends_keeps_its_connections,
                the_last_backend_that_ends_keeps_its_connections,
                a_new_connection_from_an_old_port_goes_elsewhere,
                a_syn_without_a_reply_is_repeated_to_another_backend,
                datagrams_leave_a_backend_that_ends,
                affinity_does_not_lead_to_a_backend_that_ends,
            ]
            errors: [
                a_backend_learns_what_happens_to_its_replies,
                a_client_learns_what_happens_to_its_requests,
                a_pod_hears_what_becomes_of_its_packets,
                quotes_of_datagrams_and_of_sctp_are_restored,
                errors_about_flows_with_snat_are_distinguished,
                an_error_changes_nothing_of_its_flow,
                tags_options_and_headers_of_errors_stay,
                errors_about_others_packets_pass,
                errors_cut_off_at_every_length_are_never_half_translated,
            ]
            fragments: [
                all_of_a_question_and_of_its_reply_are_translated,
                segments_in_pieces_are_translated,
                a_pod_sends_fragments_too,
                a_fragment_without_its_first_one_is_counted,
                others_fragments_pass,
                fragments_that_are_too_short_pass,
                tags_options_and_headers_of_fragments_stay,
                fragments_of_sctp_to_another_port_pass,
                fragments_of_sctp_to_the_same_port_are_translated,
                a_client_without_a_backend_gets_one_error,
                errors_about_fragments_are_translated,
                fragments_cut_off_at_every_length_pass,
                a_fragment_that_is_the_whole_is_one,
            ]
            foreign: [
                packets_to_other_addresses_pass,
                other_protocols_pass,
                truncated_packets_pass_at_every_length,
                nonsense_in_headers_passes,
            ]
            receivers: [
                frames_for_another_machine_pass,
                frames_to_groups_are_served,
                frames_of_pods_are_served_for_any_receiver,
                frames_for_interfaces_above_are_served,
                a_new_link_address_replaces_the_old_one,
                interfaces_with_too_many_addresses_take_all_frames,
            ]
            headers: [
                tags_options_and_headers_together_stay,
                a_jumbo_frame_is_translated,
                a_checksum_that_comes_to_zero_is_written_as_ones,
                fields_chosen_by_the_sender_stay,
                a_third_tag_is_one_too_many,
                a_chain_of_headers_that_is_too_long_passes,
                a_header_that_leads_past_the_end_passes,
                replies_cut_off_at_every_length_pass,
                datagrams_cut_off_at_every_length_pass,
            ]
            frontends: [
                datagrams_reach_every_kind_of_frontend,
                a_frontend_comes_before_a_node_port,
                the_nodes_other_ports_pass,
                packets_to_a_removed_service_pass,
                a_connection_outlives_its_service,
                a_connection_outlives_its_address,
                datagrams_end_with_their_service,
                the_last_backend_takes_datagrams_along,
                a_backend_of_two_services_stays_for_the_other,
                a_connection_without_its_backend_is_reset,
                a_cluster_ip_keeps_to_the_internal_policy,
                frontends_at_the_same_position_of_the_cache_are_not_confused,
            ]
            sctp_of_processes: [
                a_process_reaches_a_backend_behind_another_device,
                a_process_reaches_a_backend_behind_the_same_device,
                a_process_reaches_a_server_of_its_own_node,
                only_processes_of_this_node_are_served,
                a_backend_that_is_a_frontend_is_reached_once,
                a_forged_address_of_the_node_takes_no_association,
                a_forged_reply_of_a_server_of_the_node_is_dropped,
                one_port_of_a_process_reaches_many_services,
                packets_that_are_cut_by_chunks_fit,
                other_packets_of_processes_pass,
                a_process_without_a_backend_is_refused,
                a_process_whose_backend_is_gone_is_refused,
                a_process_sends_a_packet_that_is_too_big,
                a_hosts_route_errors_reach_the_process,
            ]
            sctp: [
                an_association_lives_from_init_to_shutdown_complete,
                an_association_picked_up_midway_is_on_probation,
                an_abort_closes_an_association,
                a_wrong_checksum_stays_wrong,
                a_checksum_that_a_device_completes_stays_empty,
                padding_is_not_summed_up,
                messages_of_every_length_are_translated,
                associations_of_two_frontends_are_distinguished,
                an_init_without_a_backend_is_rejected,
                an_association_without_its_backend_is_rejected,
                packets_cut_off_at_every_length_pass,
            ]
            idle: [
                an_established_connection_keeps_its_place_for_a_day,
                a_connection_closed_by_its_client_keeps_its_place_for_an_hour,
                a_connection_closed_by_its_server_keeps_its_place_for_an_hour,
                a_connection_without_a_reply_keeps_its_port_for_a_minute,
                an_unfinished_handshake_keeps_its_end_for_a_minute,
                a_closed_connection_keeps_its_end_for_a_minute,
                a_reset_connection_gives_its_end_back_at_once,
                a_request_without_a_reply_keeps_its_port_for_half_a_minute,
                a_request_with_a_reply_keeps_its_port_for_half_a_minute,
                an_exchange_of_datagrams_is_over_after_three_minutes,
                packets_of_either_side_keep_a_flow,
                datagrams_follow_the_table_when_they_have_been_idle,
                a_connection_that_was_silent_for_hours_goes_on,
                a_reply_does_not_use_an_expired_flow,
                an_association_keeps_its_end_for_a_day,
                later_fragments_are_waited_for_half_a_minute,
            ]
            next_hop: [
                interfaces_at_the_same_position_of_the_cache_are_not_confused,
                a_request_leaves_to_the_next_hop_and_its_reply_to_the_client,
                packets_may_leave_through_the_interface_on_which_they_arrived,
                tc_does_the_same,
                a_client_that_is_gone_uses_the_port_of_a_half_closed_connection_again,
                a_client_begins_again_with_an_older_sequence_number,
                an_unknown_neighbour_is_left_to_the_stack,
                fragments_of_what_opens_a_flow_in_tc_are_left_to_it,
                packets_that_xdp_cannot_transmit_are_left_to_tc,
                tags_leave_by_their_own_device_only,
                options_and_headers_leave_as_they_came,
                a_flow_follows_a_changed_route,
                a_flow_follows_a_changed_neighbour,
                clients_with_the_same_port_are_distinguished,
                ends_are_used_again_soon_after_closing,
                flows_of_two_frontends_share_a_backend_elsewhere,
                datagrams_leave_too,
                associations_leave_too,
                fragments_leave_where_the_first_one_went,
                errors_are_forwarded_to_the_sender_of_the_quoted_packet,
                a_pods_packets_go_up_the_stack_as_its_own,
                a_pod_reaches_itself_under_an_address_of_the_node,
                connections_with_snat_are_not_evicted_by_a_flood,
            ]
            shared_hops: [
                new_flows_share_the_next_hop_to_their_backend,
                a_packet_too_large_for_a_shared_next_hop_is_rejected,
                flows_follow_the_network_while_no_agent_runs,
                connections_do_not_exceed_a_route_narrower_than_its_device,
            ]
            undeliverable: [
                without_a_route_packets_are_dropped,
                packets_too_large_for_an_interface_are_rejected,
                packets_with_an_expired_hop_limit_are_rejected,
                a_device_without_an_address_has_no_snat_address,
                packets_for_an_unknown_interface_are_left_to_the_stack,
                a_route_may_be_narrower_than_its_device,
                packets_that_allow_no_error_are_dropped,
                large_frames_fit_if_their_segments_fit,
            ]
            neighbours: [
                requests_for_an_announced_address_are_answered,
                requests_to_this_machine_alone_are_answered,
                probes_of_an_announced_address_are_answered,
                requests_for_other_addresses_pass,
                the_nodes_own_addresses_are_left_to_the_stack,
                an_unknown_interface_answers_nothing,
                pods_ask_their_node,
                tags_of_requests_stay,
                what_follows_a_request_is_not_sent_back,
                claims_of_other_machines_are_noted,
                a_request_from_an_address_claims_it,
                requests_cut_off_at_every_length_pass,
                malformed_requests_pass,
                options_of_requests_are_skipped,
                errors_from_the_link_are_still_translated,
            ]
            bfd: [
                packets_of_a_session_are_answered,
                a_poll_is_answered_with_final,
                what_says_something_new_is_left_to_the_agent,
                packets_of_others_are_left_to_the_agent,
                what_arrives_on_another_interface_is_left_to_tc,
                packets_cut_off_at_every_length_are_left_to_the_agent,
                nothing_is_answered_after_the_deadline,
                a_session_over_several_hops_is_answered,
                packets_between_link_local_addresses_are_answered,
                a_link_local_session_is_of_one_interface,
                a_session_at_an_address_without_node_ports_is_answered,
                fragments_are_left_to_the_agent,
                a_service_may_use_the_port,
            ]
            tunnels_in: [
                a_packet_from_a_tunnel_reaches_the_backend_that_it_names,
                tc_opens_tunnels_too,
                a_connection_stays_whatever_backend_later_packets_name,
                tags_and_headers_in_a_tunnel_stay,
                congestion_in_a_tunnel_is_passed_on,
                other_tunnels_pass,
                a_service_may_have_the_port_of_tunnels,
                packets_in_a_tunnel_for_a_backend_elsewhere_are_dropped,
                packets_from_a_tunnel_are_not_forwarded_again,
                tunnels_end_with_their_setting,
                tunnels_cut_off_at_every_length_are_never_half_opened,
                fragments_come_out_of_tunnels,
                errors_come_out_of_tunnels,
                source_ranges_hold_for_what_comes_through_a_tunnel,
                a_tunnel_ends_no_established_flow,
            ]
            tunnels_out: [
                a_clients_packets_go_through_a_tunnel,
                tc_makes_tunnels_too,
                packets_that_xdp_cannot_encapsulate_are_left_to_tc,
                a_flow_through_a_tunnel_lives_by_its_clients_packets,
                datagrams_go_through_a_tunnel,
                fragments_go_through_a_tunnel,
                errors_go_through_a_tunnel,
                errors_about_flows_of_other_nodes_go_through_a_tunnel,
                other_errors_about_unknown_flows_pass,
                packets_too_large_for_a_tunnel_are_rejected,
                packets_that_are_too_large_and_allow_no_error_are_dropped,
                packets_with_an_expired_hop_limit_are_rejected_before_a_tunnel,
                a_tunnel_leads_to_where_its_backend_is_now,
                a_connection_whose_backend_elsewhere_is_gone_is_reset,
                node_ports_need_no_tunnel,
                pods_need_no_tunnel,
                a_backend_on_this_node_needs_no_tunnel,
            ]
            tunnel_keys: [
                a_keyed_tunnel_is_sent_whatever_the_kind,
                tunnels_with_a_key_of_the_cluster_are_accepted,
                tunnels_without_the_key_are_refused,
                tunnels_with_a_key_pass_a_node_without,
                a_key_counts_among_what_must_fit,
                automatic_tunnels_lead_to_nodes_that_return_probes,
                probes_with_a_key_of_the_cluster_are_returned,
                probes_with_room_show_what_else_a_node_does,
                other_probes_pass,
                the_segment_size_fits_in_the_tunnel,
            ]
            slot_history: [
                an_earlier_owner_is_asked_about_an_unknown_connection,
                a_packet_from_a_tunnel_is_asked_about_too,
                packets_of_unknown_connections_reach_the_backend_here,
                a_connection_goes_to_the_next_owner_of_its_slot,
                a_connection_that_this_node_forwarded_comes_back,
                a_flow_to_an_older_node_becomes_no_question,
                a_later_connection_of_the_same_port_goes_to_its_own_owner,
                so_does_one_after_a_connection_from_the_router,
                a_later_connection_does_not_follow_the_flow_of_a_closed_one,
                nor_does_one_whose_slot_has_another_owner,
                nothing_else_leaves_the_flow_of_a_connection,
                the_owner_is_asked_about_a_packet_for_an_earlier_one,
                a_stale_flow_costs_a_question_but_no_owner,
                each_node_is_asked_once,
                the_owners_node_is_asked_once, every_earlier_owner_is_asked_once_in_order,
                a_flow_stays_with_the_node_that_knows_it,
                a_new_connection_from_the_same_port_reaches_the_backend_here,
                a_node_that_is_asked_delivers_what_it_knows,
                a_node_that_is_asked_returns_what_it_does_not_know,
                a_node_that_is_asked_never_forwards,
                other_marks_are_refused,
                only_nodes_that_return_packets_are_asked,
                nothing_is_asked_without_history_or_about_other_packets,
                earlier_owners_that_are_gone_are_not_asked,
            ]
            refusals: [
                a_refused_connection_is_opened_with_another_endpoint,
                a_syn_without_a_reply_moves_when_it_is_repeated,
                a_reply_keeps_the_connection_where_it_is,
                an_established_connection_is_never_moved,
                only_an_exact_refusal_counts,
                the_only_endpoint_refuses_openly,
                the_only_endpoint_gets_repeated_syns,
                a_connection_moves_twice_at_most,
                a_refusal_moves_no_other_connection,
                refused_connections_are_distributed,
                affinity_follows_to_the_second_endpoint,
                a_connection_does_not_leave_the_local_endpoints,
                a_refusal_from_another_node_arrives,
                a_tunnel_brings_refusals_back_as_they_are,
                a_pod_moves_too,
                a_refused_connection_moves_without_xdp,
            ]
            replies: [
                a_reply_to_another_client_passes,
                a_reply_from_another_port_passes,
                datagrams_become_a_stream_by_packets_both_ways_over_time,
                a_syn_sent_again_after_the_reply_proves_nothing,
                a_server_may_close_first,
                a_client_may_reset_and_dial_again,
                two_frontends_of_one_backend_are_distinguished,
                a_snat_port_is_no_other_clients,
                datagrams_of_two_frontends_are_distinguished,
            ]
        }
    };
    (@all $run:ident $($module:ident: [$($case:ident,)*])*) => {$(
        mod $module {
            use super::$run;
            use $crate::packets::datapath::cases::{self, V4, V6};
            $(
                mod $case {
                    use super::*;

                    #[test]
                    fn ipv4() {
                        $run(cases::$module::$case, &V4);
                    }

                    #[test]
                    fn ipv6() {
                        $run(cases::$module::$case, &V6);
                    }
                }
            )*
        }
    )*};
}
