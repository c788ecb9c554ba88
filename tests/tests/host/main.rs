//! The data plane on the host, with tables in memory: needs neither root nor a built BPF object.

mod packet_tables;
mod sockets;
