//! Rung 3: the same tables in the kernel, where every answer, the flow entries and the counts
//! must be the host's.

use tests::datapath::Conversation;
use tests::datapath::cases::Ends;

fn run(case: fn(&mut Conversation, &Ends), ends: &Ends) {
    let mut conversation =
        Conversation::on_host_and_in_kernel().unwrap_or_else(|error| panic!("{error:#}"));
    case(&mut conversation, ends);
}

tests::every_case!(run);
tests::every_further_case!(run);
