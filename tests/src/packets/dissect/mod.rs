//! Bytes to text: one line for a layer, with what each checksum should be. Never panics, whatever
//! the bytes: what cannot be read is shown as data, and the reason said.

mod checksum;
mod icmp;
mod ip;
mod link;
mod report;
mod segment;
mod transport;

use report::Report;

/// An Ethernet frame.
pub fn dissect(frame: &[u8]) -> String {
    let mut report = Report::default();
    link::dissect_ethernet(&mut report, frame);
    report.text
}

/// A packet without an Ethernet header.
pub fn dissect_ip(packet: &[u8]) -> String {
    let mut report = Report::default();
    ip::dissect_any_ip(&mut report, packet);
    report.text
}

#[cfg(test)]
mod tests;
