//! The packet tables. A case is a function of a conversation and of the addresses to use, so
//! that each runs in both families.

pub mod ends;
pub mod flows;
pub mod foreign;
pub mod selection;
pub mod translation;

pub use ends::{Ends, V4, V6};

/// Makes a test of every case in both families: `$run(case, ends)`.
#[macro_export]
macro_rules! every_case {
    ($run:ident) => {
        $crate::every_case! { @all $run
            translation: [
                a_request_goes_to_a_backend_and_its_answer_comes_back,
                a_datagram_goes_to_a_backend_and_its_answer_comes_back,
                tags_of_networks_stay,
                headers_between_stay,
                a_datagram_without_a_checksum_keeps_none,
                a_wrong_checksum_stays_wrong,
                a_packet_with_padding_keeps_it,
            ]
            selection: [
                a_connection_stays_with_its_backend,
                connections_spread_over_all_backends,
                all_frontends_of_a_service_port_lead_to_its_backends,
                a_node_port_is_open_on_the_nodes_addresses_only,
                without_backends_packets_are_dropped,
                policy_local_wants_a_local_backend,
                another_port_of_a_frontends_address_passes,
                another_protocol_on_a_frontends_port_passes,
            ]
            flows: [
                a_connection_lives_from_syn_to_fin,
                a_reset_closes_a_connection,
                a_syn_on_a_closing_connection_starts_a_new_one,
                a_connection_past_the_service_is_not_taken_for_a_closed_one,
                a_packet_in_the_middle_of_an_unknown_connection_follows_the_table,
                an_answer_without_a_flow_passes,
                a_flow_moves_when_its_backend_goes,
                an_index_given_to_another_backend_takes_no_flow_along,
                a_flow_survives_what_happens_to_other_backends,
                established_flows_are_not_evicted_by_a_flood,
                nascent_flows_make_room,
                one_port_of_a_client_reaches_two_services,
            ]
            foreign: [
                what_is_to_other_addresses_passes,
                other_protocols_pass,
                fragments_pass,
                truncated_packets_pass_at_every_length,
                nonsense_in_headers_passes,
            ]
        }
    };
    (@all $run:ident $($module:ident: [$($case:ident,)*])*) => {$(
        mod $module {
            use super::$run;
            use $crate::datapath::cases::{self, V4, V6};
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
