//! Rung 2: the packet tables on the host.

use tests::datapath::Conversation;
use tests::datapath::cases::Ends;

fn run(case: fn(&mut Conversation, &Ends), ends: &Ends) {
    case(&mut Conversation::on_host(), ends);
}

tests::every_case!(run);
