//! More packet tables, in the form of [`crate::datapath::cases`]: about headers that are cut off
//! or pile up, frontends that come and go, and answers that could be mistaken for others.

pub mod answers;
pub mod frontends;
pub mod headers;

use crate::datapath::Conversation;
use crate::packet::Packet;

/// Opens a connection to the only backend: SYN, SYN-ACK, ACK.
fn establish(c: &mut Conversation, request: &Packet, backend: &str) {
    c.forward(&request.syn()).becomes(&request.syn().to(backend));
    let answer = request.reversed().syn_ack();
    c.reverse(&answer.from(backend)).becomes(&answer);
    c.forward(&request.ack()).becomes(&request.ack().to(backend));
}

/// Makes a test of each of these cases in both families: `$run(case, ends)`.
#[macro_export]
macro_rules! every_further_case {
    ($run:ident) => {
        $crate::every_further_case! { @all $run
            headers: [
                tags_options_and_headers_together_stay,
                a_jumbo_frame_is_translated,
                a_checksum_that_comes_to_zero_is_written_as_ones,
                what_a_sender_chose_stays,
                a_third_tag_is_one_too_many,
                a_chain_of_headers_that_is_too_long_passes,
                a_header_that_leads_past_the_end_passes,
                answers_cut_off_at_every_length_pass,
            ]
            frontends: [
                datagrams_reach_every_kind_of_frontend,
                a_frontend_comes_before_a_node_port,
                the_nodes_other_ports_pass,
                a_service_that_is_gone_is_nobodys,
                a_connection_outlives_its_service,
                the_last_backend_takes_datagrams_along,
                a_backend_of_two_services_stays_for_the_other,
                a_connection_without_its_backend_starts_anew,
            ]
            answers: [
                an_answer_to_another_client_passes,
                an_answer_from_another_port_passes,
                a_datagram_flow_is_established_by_an_answered_question,
                a_syn_sent_again_after_the_answer_proves_nothing,
                a_server_may_close_first,
                a_client_may_reset_and_dial_again,
                two_frontends_of_one_backend_share_a_clients_answers,
            ]
        }
    };
    (@all $run:ident $($module:ident: [$($case:ident,)*])*) => {
        mod further {
            use super::$run;
            use $crate::cases;
            use $crate::datapath::cases::{V4, V6};
            $(mod $module {
                use super::*;
                $(mod $case {
                    use super::*;

                    #[test]
                    fn ipv4() {
                        $run(cases::$module::$case, &V4);
                    }

                    #[test]
                    fn ipv6() {
                        $run(cases::$module::$case, &V6);
                    }
                })*
            })*
        }
    };
}
